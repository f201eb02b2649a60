"""What a tokenizer is, and the first: a byte is a token, ids below 256 are the bytes of UTF-8.

The published vocabulary's segments are not public, so text is bytes here; any other token is shown by its id.
"""

from __future__ import annotations

import codecs
from typing import Protocol


class Tokenizer(Protocol):
    """Text to token ids and back."""

    vocab_size: int
    """Ids are below it, so a model needs a vocabulary at least as large."""

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of a text. Raises: UnicodeEncodeError for one that UTF-8 has no bytes for (a lone surrogate)."""

    def encode_bytes(self, content: bytes) -> tuple[int, ...]:
        """The ids of a file's content. Every sequence of bytes can be spelled, whether it is valid UTF-8 or not."""

    def stream(self) -> TextStream:
        """A new text, to be decoded token by token."""


class TextStream(Protocol):
    """Text as tokens come: a character is given out once its last byte is there, never half of it."""

    def feed(self, token: int) -> str:
        """What this token completes: nothing, a few characters, or a mark for a token that spells no text."""

    def finish(self) -> str:
        """What is left at the end: U+FFFD where a character was cut off."""


_NUM_BYTES = 256


class ByteTokenizer:
    """A ``Tokenizer`` without a vocabulary file."""

    vocab_size = _NUM_BYTES

    def encode(self, text: str) -> tuple[int, ...]:
        return self.encode_bytes(text.encode("utf-8"))

    def encode_bytes(self, content: bytes) -> tuple[int, ...]:
        return tuple(content)

    def stream(self) -> ByteStream:
        return ByteStream()


class ByteStream:
    """A ``TextStream`` of bytes."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        """What this token completes: nothing, a character, or the mark ``⟨300⟩`` of a token that is not a byte."""
        if token < _NUM_BYTES:
            return self._decoder.decode(bytes([token]))
        return f"{self.finish()}⟨{token}⟩"

    def finish(self) -> str:
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


BYTES: Tokenizer = ByteTokenizer()
