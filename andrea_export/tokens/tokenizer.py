"""What a tokenizer is, and the first: a byte is a token, ids below 256 are the bytes of UTF-8; and what can be
generated from: prompts of the model's token ids that leave room in its context.
"""

from __future__ import annotations

import codecs
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, SupportsIndex

from andrea_export.core.errors import UsageError
from andrea_model.config import AndreaConfig


class Tokenizer(Protocol):
    """Text to token ids and back."""

    vocab_size: int
    """Ids are below it, so a model needs a vocabulary at least as large."""

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of a text. Raises: UnicodeEncodeError for one that UTF-8 has no bytes for (a lone surrogate)."""

    def encode_bytes(self, content: bytes) -> tuple[int, ...]:
        """The ids of a file's content. Every sequence of bytes can be spelled, whether it is valid UTF-8 or not."""

    def spelled(self, token: int) -> bytes | None:
        """The bytes of one token: those of a text's tokens, one after the other, are the text. None: it has none."""

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
        return ByteStream(self.spelled)

    def spelled(self, token: int) -> bytes | None:
        return bytes([token]) if token < _NUM_BYTES else None


class ByteStream:
    """A ``TextStream`` of tokens that are bytes, each as ``spelled`` says."""

    def __init__(self, spelled: Callable[[int], bytes | None]) -> None:
        self._spelled = spelled
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        """What this token completes: nothing, characters, or the mark ``⟨300⟩`` of a token that spells nothing."""
        spelled = self._spelled(token)
        return f"{self.finish()}⟨{token}⟩" if spelled is None else self._decoder.decode(spelled)

    def finish(self) -> str:
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


BYTES: Tokenizer = ByteTokenizer()


def token_ids(prompt: Iterable[SupportsIndex]) -> list[int]:
    """A prompt as plain integers, whatever kind of integers it holds. Raises: UsageError for anything else."""
    try:
        return [operator.index(token) for token in prompt]
    except TypeError:
        kind = type(prompt).__name__
        raise UsageError(f"the prompt is not a sequence of token ids: {kind} {str(prompt)[:40]!r}") from None


def check_prompt(config: AndreaConfig, prompt: Sequence[int]) -> None:
    """Refuses a prompt that is empty, too long, or not of this vocabulary; it may fill the context.

    Raises: UsageError naming every problem at once.
    """
    problems = _problems_of(config, prompt)
    if len(prompt) > config.n_ctx:
        problems.append(f"the prompt has {len(prompt)} tokens, and the model has {config.n_ctx} positions")
    _refuse(config, problems)


def check_generation(config: AndreaConfig, prompt: Sequence[int], max_new_tokens: int) -> None:
    """Refuses a request that does not fit the context: it is never cut short, so whoever asks for N tokens gets N.

    Raises: UsageError naming every problem at once.
    """
    problems = _problems_of(config, prompt)
    if max_new_tokens < 1:
        problems.append(f"{max_new_tokens} new tokens asked for, expected at least 1")
    elif len(prompt) + max_new_tokens > config.n_ctx:
        problems.append(
            f"{len(prompt)} prompt + {max_new_tokens} new tokens are {len(prompt) + max_new_tokens} positions, "
            f"and the model has {config.n_ctx}"
        )
    _refuse(config, problems)


def outside_vocabulary(config: AndreaConfig, tokens: Sequence[int]) -> list[str]:
    """One sentence naming the tokens that are not of this vocabulary, eight at most; nothing if all are."""
    outside = [token for token in tokens if not 0 <= token < config.vocab_size]
    if not outside:
        return []
    shown = ", ".join(map(str, outside[:8])) + (", …" if len(outside) > 8 else "")
    return [f"token id {shown} is outside the vocabulary, expected 0 to {config.vocab_size - 1}"]


def _problems_of(config: AndreaConfig, prompt: Sequence[int]) -> list[str]:
    empty = [] if prompt else ["the prompt is empty, expected at least one token id"]
    return empty + outside_vocabulary(config, prompt)


def _refuse(config: AndreaConfig, problems: Sequence[str]) -> None:
    if problems:
        raise UsageError(
            "; ".join(problems),
            hint=f"token ids are 0 to {config.vocab_size - 1}; prompt and new tokens together are at most "
            f"{config.n_ctx}",
        )
