"""What goes where: results on stdout, everything else on stderr. No other file writes to either.

Nothing here needs colour to be read; a verdict is coloured only on a terminal, and only where NO_COLOR is unset.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

_COLOURS = {"pass": "32", "fail": "31", "not-measured": "33", "error": "31"}


class OutputClosed(Exception):
    """The reader of stdout went away (``andrea-export … | head -1``)."""


def write_anything() -> None:
    """Lets both streams write any text: what their encoding lacks, and file names that are no text, become escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def emit(text: str = "", *, end: str = "\n") -> None:
    """Writes a result to stdout at once. Raises OutputClosed where nobody reads it any more."""
    try:
        sys.stdout.write(text + end)
        sys.stdout.flush()
    except BrokenPipeError:
        raise OutputClosed from None


def emit_json(document: Any) -> None:
    """Writes one JSON document to stdout: two-space indent, keys in the order given, no NaN (JSON has none)."""
    emit(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


def emit_lines(lines: Iterable[str]) -> None:
    """Writes result lines to stdout."""
    for line in lines:
        emit(line)


def note(text: str) -> None:
    """Writes one line to stderr. A stderr that is closed loses it; there is nowhere left to say so."""
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except (BrokenPipeError, ValueError):
        return


def note_error(message: str, hint: str | None) -> None:
    """Writes ``error: …`` and, where there is one, ``hint: …`` to stderr, each on one line."""
    note(f"{coloured('error', 'error', sys.stderr)}: {one_line(message)}")
    if hint:
        note(f"hint: {one_line(hint)}")


def one_line(text: str) -> str:
    """The text with every run of white space turned into one space."""
    return " ".join(text.split())


def coloured(text: str, meaning: str, stream: Any = None) -> str:
    """The text in the colour of its meaning where the stream is a terminal, else the text."""
    stream = sys.stdout if stream is None else stream
    if "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb" or not stream.isatty():
        return text
    return f"\x1b[{_COLOURS[meaning]}m{text}\x1b[0m"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> list[str]:
    """Aligned columns under their headers: the first ``left`` to the left, the others to the right."""
    cells = [list(headers), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    return [
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def size(num_bytes: int) -> str:
    """A file size for people: ``369.3 MB`` (1 MB = 10⁶ bytes)."""
    if num_bytes < 1000:
        return f"{num_bytes} B"
    value = float(num_bytes)
    for unit in ("kB", "MB"):
        value /= 1000
        if value < 1000:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.2f} GB"
