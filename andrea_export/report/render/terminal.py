"""A report on a terminal: the verdict on line 1, then what failed, then the layers of every candidate side by side.

Readable without colour; the caller says how a verdict's word is coloured, if at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from andrea_export.report.render.wording import (
    Finding,
    counts,
    figure,
    findings,
    headline,
    reference_as_text,
    worst_share,
)
from andrea_export.report.schema import LayerRow, Report

MAX_FINDINGS = 20  # the rest is in the HTML and the JSON; the first layer at fault is named in line 1
Paint = Callable[[str, str], str]


def report_lines(
    report: Report, subject: str, *, html: Path | None = None, paint: Paint = lambda text, _meaning: text
) -> Iterator[str]:
    """The lines of a report on ``subject``; ``paint(text, verdict)`` colours a word, ``html`` is where the page is."""
    yield f"{paint(report.verdict.upper(), report.verdict)} {subject}: {headline(report)}"
    yield f"reference: {reference_as_text(report)}"
    yield from _finding_lines(report)
    yield ""
    yield from _layer_lines(report, paint)
    yield ""
    yield from _candidate_lines(report)
    yield from _language_model_lines(report)
    for check in report.checks:
        if check.verdict != "fail":
            yield f"checked: {check.name}: {check.detail}"
    if report.formula:
        yield f"formula: {report.formula}"
    if html is not None:
        yield f"report: {html}"


def _finding_lines(report: Report) -> Iterator[str]:
    found = findings(report)
    if not found:
        return
    yield ""
    shown = [
        (finding.where, finding.candidate, finding.error, *_figure_cells(finding)) for finding in found[:MAX_FINDINGS]
    ]
    yield from _table(("failed", "candidate", "error", "metric", "expected", "obtained"), shown, left=4)
    if len(found) > MAX_FINDINGS:
        yield f"and {len(found) - MAX_FINDINGS:,} more"


def _figure_cells(finding: Finding) -> tuple[str, str, str]:
    # A problem is a sentence, not a figure: it stands in the last left-aligned column.
    if finding.failure is None:
        return finding.problem, "", ""
    return finding.failure.metric, finding.expected, finding.obtained


def _layer_lines(report: Report, paint: Paint) -> Iterator[str]:
    """A row a layer in model order, two columns a candidate: how much of the local and accumulated budget is used."""
    by_key = {(row.name, row.candidate): row for row in report.layers}
    names = [candidate.name for candidate in report.candidates if any(key[1] == candidate.name for key in by_key)]
    if not names:
        return
    layers = [layer for layer in report.layer_order if any((layer, name) in by_key for name in names)]
    layers += [name for name, _ in by_key if name not in set(report.layer_order)]
    headers = ["layer", *(f"{name} {error}" for name in names for error in ("local", "accumulated"))]
    short = {header: f"[{number}]" for number, header in enumerate(headers[1:], start=1)}
    rows = [
        (
            layer,
            *(cell for name in names for cell in _share_cells(by_key.get((layer, name)), report)),
            _mark(layer, names, by_key),
        )
        for layer in dict.fromkeys(layers)
    ]
    yield "share of its budget that each layer's error uses (above 1 fails):"
    for header, number in short.items():
        yield f"  {number} {header}"
    for line in _table(("layer", *short.values(), ""), rows, left=1, last_left=True):
        yield f"{line[:-4]}{paint('FAIL', 'fail')}" if line.endswith("FAIL") else line


def _share_cells(row: LayerRow | None, report: Report) -> tuple[str, str]:
    if row is None:
        return "", ""
    if row.problem:
        return "", "none"
    accumulated = share_as_text(worst_share(row.metrics, row.budget, report.metrics)[0]) if row.budget else ""
    if row.local is None or row.local.verdict == "not-measured" or not row.local.budget:
        return "-", accumulated
    return share_as_text(worst_share(row.local.metrics, row.local.budget, report.metrics)[0]), accumulated


def share_as_text(share: float) -> str:
    """A share of a budget in few characters: ``0.31``, ``12.4``, ``3e+05``, ``inf``."""
    if not math.isfinite(share):
        return "inf"
    return f"{share:.2f}" if share < 10 else f"{share:.3g}"


def _mark(layer: str, names: Sequence[str], by_key: dict[tuple[str, str], LayerRow]) -> str:
    rows = [by_key[layer, name] for name in names if (layer, name) in by_key]
    return "FAIL" if any(row.verdict == "fail" for row in rows) else ""


def _candidate_lines(report: Report) -> Iterator[str]:
    rows = []
    for candidate in report.candidates:
        num_layers, num_failed = counts(report, candidate)
        layers = f"{num_layers - num_failed} of {num_layers}" if num_layers else ""
        moved = candidate.facts.get("taps_moved_logits_by")
        rows.append(
            (candidate.name, candidate.verdict, layers, "" if moved is None else figure(moved), candidate.reason)
        )
    headers = ("candidate", "verdict", "layers within budget", "taps moved logits by", "reason")
    yield from _table(headers, rows, left=2, last_left=True)


def _language_model_lines(report: Report) -> Iterator[str]:
    if not report.language_model:
        return
    yield ""
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
            row.reason,
        )
        for row in report.language_model
    ]
    headers = ("candidate", "language model", "verdict", *columns.values(), "")
    yield from _table(headers, rows, left=3, last_left=True)


def _table(
    headers: Sequence[str], rows: Iterable[Sequence[str]], *, left: int, last_left: bool = False
) -> Iterator[str]:
    """Aligned columns, the first ``left`` (and, where asked, the last) to the left, the others to the right."""
    cells = [list(headers), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    for row in cells:
        parts = [
            cell.ljust(width) if index < left or (last_left and index == len(widths) - 1) else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(parts).rstrip()
