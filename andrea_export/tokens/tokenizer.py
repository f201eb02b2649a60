"""What a tokenizer is. ``bytes.py`` is the first; another one is a file beside it."""

from __future__ import annotations

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
