"""Text to tokens and back, byte by byte: a token below 256 is a byte of UTF-8.

The published vocabulary's segments are not public, so text is bytes here; a token that is no byte is shown by its id.
"""

from __future__ import annotations

import codecs

from andrea_export.core.errors import UsageError

_NUM_BYTES = 256


def tokens_from_prompt(text: str, vocab_size: int) -> tuple[int, ...]:
    """The prompt's UTF-8 bytes. Raises UsageError if it is empty or no Unicode, or the vocabulary has no bytes."""
    if not text:
        raise UsageError("--prompt is empty, expected at least one character")
    if vocab_size < _NUM_BYTES:
        raise UsageError(f"text needs a vocabulary of at least {_NUM_BYTES}, and the model's has {vocab_size}")
    try:
        return tuple(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise UsageError("--prompt is not valid text in this terminal's encoding", hint="use UTF-8") from None


class TextStream:
    """Text as tokens come: a character is given out once its last byte is there, never half of it."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        """What this token completes: nothing, a character, or the mark ``⟨300⟩`` of a token that is no byte."""
        if token < _NUM_BYTES:
            return self._decoder.decode(bytes([token]))
        return f"{self.finish()}⟨{token}⟩"

    def finish(self) -> str:
        """What is left at the end: U+FFFD where a character was cut off."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
