"""What the commands that judge a report have in common: how they end."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import typer

from andrea_export.cli.output import note

if TYPE_CHECKING:
    from andrea_export.report.schema import Report


def exit_with_outcome(report: Report) -> NoReturn:
    """Ends the command with the report's exit code; where it is that of not measured, stderr says what was not."""
    from andrea_export.judge.outcome import ExitCode, outcome

    came_out = outcome(report)
    if came_out.code is ExitCode.NOT_MEASURED:
        for entry in came_out.unmeasured:
            note(f"not measured: {entry.name}: {entry.reason}")
    raise typer.Exit(came_out.code)
