"""What every page of the reference is written with: a head, tables, and prose from docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence


def page(title: str, *parts: str) -> str:
    """A page: its title, where it comes from, its parts."""
    made = "Made from the code by `scripts/write_reference.py`; do not edit."
    return "\n\n".join([f"# {title}", made, *parts]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a bar inside a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def prose(text: str | None) -> str:
    """A docstring or help text on one line: its code spans as Markdown has them, the pages it names as links."""
    line = " ".join(inspect.cleandoc(text or "").split()).replace("``", "`")
    return re.sub(r"\bdocs/([\w/-]+\.md)", r"[docs/\1](../\1)", line)
