"""How long work says where it is. The library calls it; the cli draws it; nothing here prints."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told of every step of a build or a validation as it happens."""

    def start(self, step: str) -> None:
        """A step begins."""

    def detail(self, step: str, text: str) -> None:
        """A step in progress has something to say: one short line."""

    def finish(self, step: str, outcome: str) -> None:
        """A step ended well; ``outcome`` says how: ``built in 3.9 s``, ``reused: nothing it is made from changed``."""


class Silent:
    """A Progress that shows nothing, for library use."""

    def start(self, step: str) -> None:
        """Shows nothing."""

    def detail(self, step: str, text: str) -> None:
        """Shows nothing."""

    def finish(self, step: str, outcome: str) -> None:
        """Shows nothing."""
