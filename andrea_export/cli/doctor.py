"""``andrea-export doctor``: which steps this machine can do, and the command that brings each missing one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from andrea_export import __version__
from andrea_export.cli.options import JsonOption, option
from andrea_export.cli.output import coloured, emit_result, note_error, wrapped
from andrea_export.core.errors import BackendUnavailable, UsageError

if TYPE_CHECKING:
    from andrea_export.doctor.steps import Examination


def doctor(
    require: Annotated[
        list[str] | None,
        option("--require", "Exit 3 where this step is missing. Repeat it.", "STEP"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what this machine can do, step by step, what is missing, and the exact command that brings it.

    Exits 0 whatever it finds, except with --require.
    """
    from andrea_export.doctor.steps import STEP_NAMES, examine

    unknown = [name for name in require or () if name not in STEP_NAMES]
    if unknown:
        raise UsageError(f"--require: unknown step {', '.join(unknown)}", hint=f"steps: {', '.join(STEP_NAMES)}")
    examination = examine()
    missing = [step for step in examination.steps if step.name in (require or ()) and not step.available]
    document = {"andrea_export": __version__, **asdict(examination)}
    emit_result(lambda: document, _lines(examination), as_json=as_json)
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
    pad = " " * (width + 7)
    told = ""
    for step in examination.steps:
        mark = coloured("yes", "pass") if step.available else coloured("no ", "fail")
        first, *more = wrapped(f"{pad}{step.what}{': ' if step.detail else ''}{step.detail}", indent=pad)
        yield f"{mark}  {step.name.ljust(width)}  {first[len(pad) :]}"
        yield from more
        if not step.available and step.hint and step.hint != told:
            yield from wrapped(f"{pad}→ {step.hint}", indent=f"{pad}  ")
            told = step.hint
    missing = [step.name for step in examination.steps if not step.available]
    yield ""
    yield from wrapped(
        f"{len(examination.steps) - len(missing)} of {len(examination.steps)} steps can be done here"
        + (f"; not here: {', '.join(missing)}" if missing else "")
    )
