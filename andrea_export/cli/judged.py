"""What the commands that judge a report have in common: what a terminal shows of it, and how they end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

import typer

from andrea_export.cli.output import coloured, emit_json_text, emit_lines, note, wrapped

if TYPE_CHECKING:
    from andrea_export.report.render.terminal import Screen
    from andrea_export.report.schema import Report


def screen() -> Screen:
    """The terminal that stdout is, or is not."""
    from andrea_export.report.render.terminal import Screen

    return Screen(paint=coloured, wrap=wrapped)


def show(report: Report, lines: Iterable[str], *, as_json: bool) -> None:
    """Prints the report as one JSON document or, for people, as these lines."""
    from andrea_export.report.file import report_as_json

    if as_json:
        emit_json_text(report_as_json(report))
    else:
        emit_lines(lines)


def exit_with_outcome(report: Report) -> NoReturn:
    """Ends the command with the report's exit code; where it is that of not measured, stderr says what was not."""
    from andrea_export.judge.verdicts import ExitCode, outcome

    came_out = outcome(report)
    if came_out.code is ExitCode.NOT_MEASURED:
        for entry in came_out.unmeasured:
            note(f"not measured: {entry.name}: {entry.reason}")
    raise typer.Exit(came_out.code)
