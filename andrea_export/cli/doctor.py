"""``andrea-export doctor``: which steps this machine can do, and the command that brings each missing one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from andrea_export.cli.options import JsonOption
from andrea_export.cli.output import coloured, emit_json, emit_lines, note_error
from andrea_export.errors import BackendUnavailable, UsageError

if TYPE_CHECKING:
    from andrea_export.doctor import Examination


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("doctor")(doctor)


def doctor(
    require: Annotated[
        list[str] | None,
        typer.Option(
            "--require", help="Exit 3 where this step is missing. Repeat it.", metavar="STEP", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what this machine can do, step by step, what is missing, and the exact command that brings it.

    Exits 0 whatever it finds, except with --require.
    """
    from andrea_export.doctor import STEP_NAMES, examination_as_json, examine

    unknown = [name for name in require or () if name not in STEP_NAMES]
    if unknown:
        raise UsageError(f"--require: unknown step {', '.join(unknown)}", hint=f"steps: {', '.join(STEP_NAMES)}")
    examination = examine()
    missing = [step for step in examination.steps if step.name in (require or ()) and not step.available]
    if as_json:
        emit_json(examination_as_json(examination))
    else:
        emit_lines(_lines(examination))
    if missing:
        note_error(
            "; ".join(f"{step.name}: {step.detail}" for step in missing),
            "; ".join(step.hint for step in missing if step.hint),
        )
        raise typer.Exit(BackendUnavailable.exit_code)


def _lines(examination: Examination) -> Iterator[str]:
    yield examination.machine
    yield ""
    width = max(len(step.name) for step in examination.steps)
    for step in examination.steps:
        mark = coloured("yes", "pass") if step.available else coloured("no ", "fail")
        yield f"{mark}  {step.name.ljust(width)}  {step.what}{': ' if step.detail else ''}{step.detail}"
        if not step.available and step.hint:
            yield f"     {' ' * width}  → {step.hint}"
