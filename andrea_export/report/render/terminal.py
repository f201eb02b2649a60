"""A report on a terminal: the verdict on line 1, what failed as expected against obtained, what was proven.

``verdict_line``, ``failure_lines`` and ``proof_lines`` are the sections; ``report_lines`` is a comparison's view, which
has the layers of every candidate side by side as well. Readable without colour. Judges nothing.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from andrea_export.core.lines import table
from andrea_export.report.render.wording import (
    figure,
    findings,
    headline,
    reference_as_text,
    rows_of,
    unmeasured,
    worst_of,
    worst_share,
)
from andrea_export.report.schema import LayerRow, LocalError, Report

MAX_FINDINGS = 20  # the rest is in the HTML and the JSON; the first layer at fault is named in line 1
_MAX_LINES_BELOW_VERDICT = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """What the lines are shown on. The default neither colours nor wraps."""

    paint: Callable[[str, str], str] = lambda text, _meaning: text
    """(word, verdict) → the word in the verdict's colour."""
    wrap: Callable[[str], Sequence[str]] = lambda text: (text,)
    """A sentence → the lines it takes."""


A_FILE = Screen()


def report_lines(report: Report, subject: str, *, html: Path | None = None, screen: Screen = A_FILE) -> Iterator[str]:
    """The lines of a comparison of ``subject``: every section, and the layers side by side; ``html`` is its page."""
    yield f"{screen.paint(report.verdict.upper(), report.verdict)} {subject}: {headline(report)}"
    yield from failure_lines(report)
    yield ""
    yield from _layer_lines(report, screen)
    yield from proof_lines(report, screen)
    if html is not None:
        yield f"report: {html}"


def verdict_line(report: Report, subject: str, screen: Screen = A_FILE) -> str:
    """The first line on a bundle: the verdict, the first layer at fault or, of a pass, what it does not speak for."""
    return f"{screen.paint(report.verdict.upper(), report.verdict)} {subject}: {_why(report)}"


def with_verdict_again(lines: Iterable[str]) -> Iterator[str]:
    """The lines, whose first is the verdict; it is said again at the end of more than fit a terminal's 24."""
    verdict, num_lines = "", 0
    for line in lines:
        verdict = verdict or line
        num_lines += 1
        yield line
    if num_lines > _MAX_LINES_BELOW_VERDICT:
        yield ""
        yield verdict


def failure_lines(report: Report) -> Iterator[str]:
    """Every failed check and candidate, then what failed in each as a table of expected and obtained; nothing where all
    passed."""
    for check in report.checks:
        if check.verdict == "fail":
            yield f"failed check {check.name}: {check.detail}"
    for candidate in report.candidates:
        if candidate.verdict == "fail":
            yield f"failed candidate {candidate.name}: {candidate.reason or 'see its layers'}"
    found = [finding for finding in findings(report) if finding.error not in ("check", "candidate")]
    rows: dict[str, list[tuple[str, ...]]] = {}  # by candidate: a column for it would not fit 80
    for finding in found[:MAX_FINDINGS]:
        if finding.failure is None:
            yield f"failed in {finding.candidate}: {finding.where}: {finding.problem}"
        else:
            figures = (finding.failure.metric, finding.expected, finding.obtained)
            rows.setdefault(finding.candidate, []).append((finding.where, finding.error, *figures))
    for name, of_candidate in rows.items():
        yield ""
        yield f"out of budget in {name}"
        headers = ("layer or case", "error", "metric", "expected", "obtained")
        yield from (f"  {line}" for line in table(headers, of_candidate, left=3))
    if len(found) > MAX_FINDINGS:
        yield f"and {len(found) - MAX_FINDINGS:,} more"


def proof_lines(report: Report, screen: Screen = A_FILE) -> Iterator[str]:
    """What was compared, by candidate: layers, the worst error, predictions; and what was not measured, and why."""
    yield f"reference: {reference_as_text(report)}"
    yield from _candidate_lines(report)
    moved = [(candidate.name, candidate.facts.get("taps_moved_logits_by")) for candidate in report.candidates]
    if told := [f"{name} {figure(by)}" for name, by in moved if by is not None]:
        yield from screen.wrap(f"taps moved logits by: {', '.join(told)}")
    yield from _language_model_lines(report)
    for entry in unmeasured(report):
        yield from screen.wrap(f"not measured: {entry.name}: {entry.reason}")
    for check in report.checks:
        if check.verdict == "pass":
            yield from screen.wrap(f"checked: {check.name}: {check.detail}")
    if report.formula:
        yield from screen.wrap(f"formula: {report.formula}")


def _why(report: Report) -> str:
    if report.verdict == "pass":
        plural = "" if len(report.layers) == 1 else "s"
        return f"{len(report.layers)} layer comparison{plural} within budget{_not_measured(report)}"
    if report.first_failure:
        return f"the first layer at fault is {report.first_failure}"
    if failed := [check.name for check in report.checks if check.verdict == "fail"]:
        return f"check {failed[0]} failed"
    if broken := [candidate for candidate in report.candidates if candidate.verdict == "fail"]:
        return f"{broken[0].name}: {broken[0].reason}"
    return "nothing could be measured here"


def _not_measured(report: Report) -> str:
    """What a pass does not speak for: ``; NOT MEASURED: a, b (why)``."""
    names: dict[str, list[str]] = {}
    for entry in unmeasured(report):
        names.setdefault(entry.reason, []).append(entry.name)
    told = [f"{', '.join(of_reason)} ({reason})" for reason, of_reason in names.items()]
    return f"; NOT MEASURED: {'; '.join(told)}" if told else ""


def _layer_lines(report: Report, screen: Screen) -> Iterator[str]:
    """A row a layer in model order, two columns a candidate: how much of the local and accumulated budget is used."""
    by_key = {(row.name, row.candidate): row for row in report.layers}
    names = [candidate.name for candidate in report.candidates if any(key[1] == candidate.name for key in by_key)]
    if not names:
        return
    columns = [f"{name} {error}" for name in names for error in ("local", "accumulated")]
    numbers = [f"[{number}]" for number in range(1, len(columns) + 1)]
    rows = []
    for layer in sorted(dict.fromkeys(row.name for row in report.layers), key=report.position_of()):
        mine = [by_key.get((layer, name)) for name in names]
        failed = any(row is not None and row.verdict == "fail" for row in mine)
        cells = (cell for row in mine for cell in _share_cells(row, report))
        rows.append((layer, *cells, "FAIL" if failed else ""))
    yield "share of its budget that each layer's error uses (above 1 fails):"
    yield from (f"  {number} {column}" for number, column in zip(numbers, columns, strict=True))
    for line in table(("layer", *numbers, ""), rows):
        yield f"{line[:-4]}{screen.paint('FAIL', 'fail')}" if line.endswith("FAIL") else line
    yield ""


def _share_cells(row: LayerRow | None, report: Report) -> tuple[str, str]:
    if row is None:
        return "", ""
    if row.problem:
        return "", "none"
    accumulated = _share(row, report) if row.budget else ""
    if row.local is None or row.local.verdict == "not-measured" or not row.local.budget:
        return "-", accumulated
    return _share(row.local, report), accumulated


def _share(error: LayerRow | LocalError, report: Report) -> str:
    """The largest share of a budget in few characters: ``0.31``, ``12.4``, ``3e+05``, ``inf``."""
    share, _ = worst_share(error.metrics, error.budget, report.metrics)
    if not math.isfinite(share):
        return "inf"
    return f"{share:.2f}" if share < 10 else f"{share:.3g}"


def _candidate_lines(report: Report) -> list[str]:
    rows = []
    for candidate in report.candidates:
        mine = rows_of(report, candidate.name)
        rows.append((candidate.name, candidate.verdict, str(len(mine) or ""), _worst(mine, report)))
    return table(("candidate", "verdict", "layers", "worst error, as a share of its budget"), rows, left=4)


def _worst(rows: Sequence[LayerRow], report: Report) -> str:
    """The largest share of a budget of all rows, with the layer it is in."""
    worst = worst_of(rows, report.metrics)
    if worst is None:
        return ""
    times = f"{worst.share:.0%}" if worst.share <= 1 else f"{worst.share:.3g} times"
    local = "local " if worst.error == "local" else ""
    return f"{times}: {local}{worst.metric} {worst.value:.2e}, {worst.layer}"


def _language_model_lines(report: Report) -> Iterator[str]:
    if not report.language_model:
        return
    columns = {
        "top1_agreement": "top-1",
        "top5_overlap": "top-5",
        "kl_mean": "KL mean",
        "kl_max": "KL max",
        "perplexity_difference": "perplexity Δ",
    }
    rows = [
        (
            row.candidate,
            row.case,
            row.verdict,
            *(figure(float(row.metrics[name])) if name in row.metrics else "" for name in columns),
        )
        for row in report.language_model
    ]
    yield ""
    yield from table(("candidate", "language model", "verdict", *columns.values()), rows, left=3)
    yield ""
