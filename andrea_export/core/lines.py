"""Text as lines that a terminal shows and does not obey: control characters visible, long words shortened, columns
aligned."""

import re
from collections.abc import Iterable, Sequence

# Control characters (C0 but newline, DEL, C1), line and paragraph separators, and what reorders text: U+200E/F, U+061C,
# U+202A to E, U+2066 to 9. The three colours of a verdict can be let through: they move nothing.
_CONTROL = re.compile(
    r"(?P<colour>\x1b\[(?:3[123]|0)m)"
    r"|[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
_LONGEST_WORD = 500
_LONGEST_CELL = 120


def visible(text: str, *, colours: bool = False) -> str:
    """The text with every control character as an escape; ``colours`` lets those of a verdict through."""

    def escape(found: re.Match[str]) -> str:
        control = found.group()
        if colours and found.group("colour"):
            return control
        return control[0].encode("unicode_escape").decode("ascii") + control[1:]

    return _CONTROL.sub(escape, text)


def one_line(text: str) -> str:
    """The text with every run of white space turned into one space, control characters escaped, and the middle of a
    very long word left out."""
    return visible(" ".join(shortened(word, _LONGEST_WORD) for word in text.split()), colours=True)


def shortened(text: str, limit: int = _LONGEST_CELL) -> str:
    """The text; of one longer than ``limit`` its beginning and its end, with ``…`` between."""
    return text if len(text) <= limit else f"{text[: limit * 2 // 3]}…{text[len(text) - limit // 3 + 1 :]}"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> list[str]:
    """Aligned columns under their headers: the first ``left`` to the left, the others to the right."""
    cells = [list(headers), *([shortened(visible(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    return [
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
