"""``andrea-export validate``: a bundle's layers against torch, again, at any time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from andrea_export.cli.judged import exit_with_outcome, screen, show
from andrea_export.cli.options import CacheDirOption, JsonOption, cache_dir_from, option
from andrea_export.cli.progress import progress_on_stderr

if TYPE_CHECKING:
    from andrea_export.report.schema import Report


def validate(
    bundle: Annotated[Path, typer.Argument(help="A folder that andrea-export build made.", metavar="BUNDLE")],
    checkpoint: Annotated[
        Path | None,
        option(
            "--checkpoint",
            "The checkpoint the bundle was made from. Without: the weights of the bundle's own model.onnx, held "
            "against the hashes its manifest recorded.",
            "FILE",
        ),
    ] = None,
    cache_dir: CacheDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare every layer of a bundle with torch; exit 1 where one is out of budget, naming the first.

    Changes nothing in the bundle.
    """
    from andrea_export.validation.bundle import validate_bundle

    with progress_on_stderr() as progress:
        report = validate_bundle(bundle, checkpoint=checkpoint, cache_dir=cache_dir_from(cache_dir), progress=progress)
    show(report, _lines(report, str(bundle)), as_json=as_json)
    exit_with_outcome(report)


def _lines(report: Report, subject: str) -> Iterator[str]:
    from andrea_export.report.render import terminal

    lines = (
        terminal.verdict_line(report, subject, screen()),
        *terminal.failure_lines(report),
        "",
        *terminal.proof_lines(report, screen()),
    )
    yield from terminal.with_verdict_again(lines)
