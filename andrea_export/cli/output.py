"""What goes where: results on stdout, everything else on stderr. No other file writes to either.

Nothing here needs colour to be read; a verdict is coloured only on a terminal, and only where NO_COLOR is unset. Text
from a file (a tensor's name, a manifest's string) reaches a terminal with its control characters as escapes.
"""

import io
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

from andrea_export.core.errors import AndreaError, UsageError
from andrea_export.core.lines import one_line, visible
from andrea_export.core.numbers import json_values

_COLOURS = {"pass": "32", "fail": "31", "not-measured": "33", "error": "31"}
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")


class OutputClosed(Exception):
    """The reader of stdout went away (``andrea-export … | head -1``)."""


class OutputFailed(AndreaError):
    """Stdout takes nothing more: the disk it goes to is full, or broken."""

    exit_code = 3


def prepare_streams() -> None:
    """Makes both streams take any text: what their encoding lacks, and file names that are not text, become escapes.

    Raises: UsageError where stdout is closed (``>&-``). A stderr that is closed loses what it is given, without a word.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:  # a file opened later would take this number, and get what a library prints
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 (lives as long as the process)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123
        raise UsageError("stdout is closed", hint="send it to /dev/null where the result is not wanted")


def flush_streams(code: int) -> int:
    """The code to exit with once both streams are flushed; one that takes nothing more is replaced, so that Python's
    own flush at the end is quiet."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = 141
    except OSError:
        code = code or OutputFailed.exit_code
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except OSError:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123
    return code


def emit(text: str = "", *, end: str = "\n") -> None:
    """Writes a result to stdout at once.

    Raises: OutputClosed where nobody reads it any more, OutputFailed where it cannot be written.
    """
    _write(visible(text, colours=_has_colours(sys.stdout)) + end)


def emit_json(document: Any) -> None:
    """Writes one JSON document to stdout: two-space indent, keys in the order given; a figure that is not finite is a
    string, for JSON has none."""
    emit_json_text(json.dumps(json_values(document), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def emit_json_text(text: str) -> None:
    """Writes JSON that is text already; what stdout's encoding lacks becomes JSON's own escapes."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "").replace("_", "")
    lacking = _LONE_SURROGATE if encoding == "utf8" else _NOT_ASCII
    _write(lacking.sub(lambda found: json.dumps(found.group())[1:-1], text))


def emit_lines(lines: Iterable[str]) -> None:
    """Writes result lines to stdout."""
    for line in lines:
        emit(line)


def emit_result(document: Callable[[], Any], lines: Iterable[str], *, as_json: bool) -> None:
    """Writes a result as one JSON document or, for people, as these lines."""
    if as_json:
        emit_json(document())
    else:
        emit_lines(lines)


def note(text: str) -> None:
    """Writes one line to stderr. A stderr that is closed or full loses it; there is nowhere left to say so."""
    try:
        sys.stderr.write(visible(text, colours=_has_colours(sys.stderr)) + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        return


def note_error(message: str, hint: str | None) -> None:
    """Writes ``error: …`` and, where there is one, ``hint: …`` to stderr, each on one line."""
    note(f"{coloured('error', 'error', sys.stderr)}: {one_line(message)}")
    if hint:
        note(f"hint: {one_line(hint)}")


def wrapped(text: str, *, indent: str = "  ") -> list[str]:
    """The text in lines that fit the terminal (80 columns where there is none), all but the first indented."""
    width = min(max(shutil.get_terminal_size().columns, 40), 120)
    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [""]


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise OutputClosed from None
    except OSError as error:
        raise OutputFailed(f"stdout cannot be written: {error.strerror}", hint="free space where it goes") from None


def coloured(text: str, meaning: str, stream: Any = None) -> str:
    """The text in the colour of its meaning where the stream is a terminal, else the text."""
    stream = sys.stdout if stream is None else stream
    return f"\x1b[{_COLOURS[meaning]}m{text}\x1b[0m" if _has_colours(stream) else text


def _has_colours(stream: Any) -> bool:
    return "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb" and stream.isatty()


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
