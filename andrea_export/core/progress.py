"""How long work says where it is. The library calls it; the cli draws it; nothing here prints."""


class Progress:
    """Told of every step of a build or a validation as it happens. A subclass shows what it is told."""

    def start(self, step: str) -> None:
        """A step begins."""

    def detail(self, step: str, text: str) -> None:
        """A step in progress has something to say: one short line."""

    def finish(self, step: str, outcome: str) -> None:
        """A step ended well; ``outcome`` says how: ``built in 3.9 s``, ``reused: nothing it is made from changed``."""


class Silent(Progress):
    """A Progress that shows nothing, for library use."""
