"""``andrea-export validate``: a bundle's layers against torch, again, at any time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from andrea_export.cli.judged import exit_with_outcome
from andrea_export.cli.options import CacheDirOption, JsonOption, cache_dir_from
from andrea_export.cli.output import emit_json_text, emit_lines
from andrea_export.cli.progress import progress_on_stderr


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("validate", short_help="Compare a bundle with torch again, layer by layer.")(validate)


def validate(
    bundle: Annotated[Path, typer.Argument(help="A folder that andrea-export build made.", metavar="BUNDLE")],
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            help="The checkpoint the bundle was made from. Without: the weights of the bundle's own model.onnx, held "
            "against the hashes its manifest recorded.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    cache_dir: CacheDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare every layer of a bundle with torch; exit 1 where one is out of budget, naming the first.

    Changes nothing in the bundle.
    """
    from andrea_export.cli.report_text import failure_lines, proof_lines, verdict_line, with_verdict_again
    from andrea_export.report.file import report_as_json
    from andrea_export.validation.validate import validate_bundle

    with progress_on_stderr() as progress:
        report = validate_bundle(bundle, checkpoint=checkpoint, cache_dir=cache_dir_from(cache_dir), progress=progress)
    if as_json:
        emit_json_text(report_as_json(report))
    else:
        emit_lines(
            with_verdict_again((verdict_line(report, str(bundle)), *failure_lines(report), "", *proof_lines(report)))
        )
    exit_with_outcome(report)
