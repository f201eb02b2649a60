"""``andrea-export diff``: two models, layer by layer and as language models, under a policy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from andrea_export.cli.judged import exit_with_outcome, screen, show
from andrea_export.cli.options import (
    BaselineOption,
    InputsOption,
    JsonOption,
    LanguageModelOption,
    PolicyOption,
    TextOption,
    option,
)
from andrea_export.cli.progress import progress_on_stderr
from andrea_export.cli.report import write_whole
from andrea_export.core.errors import UsageError

if TYPE_CHECKING:
    from andrea_export.judge.verdicts import Terms
    from andrea_export.report.schema import Report


def diff(
    reference: Annotated[
        str, typer.Argument(help="A checkpoint, ONNX file, bundle (DIR, DIR#tensorrt-rtx-fp16) or trace.")
    ],
    candidate: Annotated[str, typer.Argument(help="The same, to be compared with it.")],
    *,
    policy: PolicyOption = None,
    inputs: InputsOption = None,
    text: TextOption = None,
    baseline: BaselineOption = None,
    output: Annotated[
        Path | None, option("--output -o", "A folder for report.json, report.html, report.md and junit.xml.", "DIR")
    ] = None,
    language_model: LanguageModelOption = True,
    as_json: JsonOption = False,
) -> None:
    """Compare CANDIDATE with REFERENCE, layer by layer: what each layer adds itself, and what has added up.

    Exit 0: within budget. 1: not, and the first layer at fault is named. 2: bad input. 3: it cannot be measured here.
    """
    from andrea_export.compare.sources.base import same_model
    from andrea_export.core.names import layer_names
    from andrea_export.report.render.terminal import report_lines
    from andrea_export.validation.comparison import Sources, inputs_for
    from andrea_export.validation.comparison import diff as compared

    terms = terms_from(policy, baseline)
    if output is not None and output.exists() and not output.is_dir():
        raise UsageError(f"--output {output} is a file, expected a folder")
    with progress_on_stderr() as progress, Sources() as sources:
        first = sources.open(reference, precision="fp64")
        second = sources.open(candidate, precision="fp32")
        config = first.identity.config
        same_model(first.identity, second.identity)
        terms.policy.check_names(layer_names(config), ())  # before anything is run
        given = inputs_for([first, second], config, file=inputs, text=text, language_model=language_model)
        report = compared(first, [second], given, terms, progress=progress)
    html = write_reports(output, report) if output is not None else None
    lines = report_lines(report, f"{candidate} against {reference}", html=html, screen=screen())
    show(report, lines, as_json=as_json)
    exit_with_outcome(report)


def terms_from(policy: Path | None, baseline: Path | None) -> Terms:
    """The policy and the baseline that were named, or the defaults. Raises: PolicyError, ReportError."""
    from andrea_export.judge.policy import policy_from_toml
    from andrea_export.judge.verdicts import Terms
    from andrea_export.report.file import report_from_json

    before = report_from_json(baseline) if baseline is not None else None
    if policy is None:
        return Terms(baseline=before)
    read, origin = policy_from_toml(policy)
    return Terms(policy=read, origin=origin, baseline=before)


def write_reports(folder: Path, report: Report) -> Path:
    """Writes every format into the folder; returns the HTML page."""
    from andrea_export.report.render import render

    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "junit.xml", render(report, "junit"))
    write_whole(folder / "report.md", render(report, "markdown"))
    write_whole(folder / "report.html", render(report, "html"))
    write_whole(folder / "report.json", render(report, "json"))
    return folder / "report.html"
