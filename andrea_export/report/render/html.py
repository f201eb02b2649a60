"""A report as one HTML file that needs no network: a template, a style sheet, a script and the charts' library in one.

Owns what of a report the page is given. Figures that a reader may compare are given whole; the curves along positions
and channels, which only colour a chart, are rounded so that a thousand rows stay small.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from typing import Any

from andrea_export import __version__
from andrea_export.core.numbers import json_values
from andrea_export.report.render.wording import (
    counts,
    errors_of,
    figure,
    findings,
    headline,
    reference_as_text,
    rows_of,
    worst_share,
)
from andrea_export.report.schema import LayerRow, LocalError, Report, WorstElement, is_at_fault

MAX_WORST, MAX_FINDINGS = 20, 50


def report_as_html(report: Report) -> str:
    """The report as one self-contained HTML page."""
    import jinja2

    assets = resources.files("andrea_export.report.render") / "assets"

    def asset(name: str) -> str:
        return (assets / name).read_text(encoding="utf-8")

    found = findings(report)
    page = json.dumps(_page(report), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["figure"] = lambda value: figure(float(value))
    template = environment.from_string(asset("report.html.j2"))
    return template.render(
        report=report,
        headline=headline(report),
        reference=reference_as_text(report),
        candidates=[
            {**asdict(candidate), "num_layers": num_layers, "num_within": num_layers - num_failed}
            for candidate in report.candidates
            for num_layers, num_failed in [counts(report, candidate)]
        ],
        findings=[finding for finding in found if not finding.inherited],
        inherited=[finding for finding in found if finding.inherited],
        max_findings=MAX_FINDINGS,
        worst=_worst_elements(report),
        version=__version__,
        style=asset("report.css"),
        script=asset("report.js"),
        charts=asset("echarts.min.js"),
        # Nothing in it can end the script element that it stands in.
        page=page.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"),
        as_text=_as_text,
    )


def _page(report: Report) -> dict[str, Any]:
    """What the script draws from; a figure that is not finite is a string, as in the report's own JSON."""
    errors = [error for row in report.layers for _, error in errors_of(row)]
    names = tuple(dict.fromkeys(name for error in errors for name in (*error.metrics, *error.budget)))
    rows = [row for candidate in report.candidates for row in rows_of(report, candidate.name)]
    return {
        "firstFailure": report.first_failure,
        "candidates": [{"name": c.name, "verdict": c.verdict, "precision": c.precision} for c in report.candidates],
        "metrics": {name: asdict(metric) for name, metric in report.metrics.items()},
        "metricNames": names,
        "rows": [_row_view(row, names) for row in rows],
        "languageModel": [
            {
                "candidate": row.candidate,
                "case": row.case,
                "verdict": row.verdict,
                "metrics": json_values(row.metrics),
                "budget": json_values(row.budget),
            }
            for row in report.language_model
        ],
    }


def _row_view(row: LayerRow, names: Sequence[str]) -> dict[str, Any]:
    view: dict[str, Any] = {
        "name": row.name,
        "candidate": row.candidate,
        "verdict": row.verdict,
        "dtype": row.dtype,
        **_error_view(row, names),
    }
    if is_at_fault(row):
        view["atFault"] = True
    if row.problem:
        view["problem"] = row.problem
    if row.worst is not None:
        view["worst"] = _element_view(row.worst)
    if row.ulp_histogram is not None:
        # Each layer has as many bins as its largest distance needs.
        bins = zip(row.ulp_histogram.edges, row.ulp_histogram.counts, strict=True)
        view["ulp"] = [[edge, count] for edge, count in bins]
    if row.spread is not None:
        view["spread"] = {
            "cases": row.spread.cases,
            "positionsPerGroup": row.spread.positions_per_group,
            # Three significant digits: a colour shows no more.
            "byPosition": [json_values(float(f"{value:.2e}")) for value in row.spread.by_position],
            "channelsPerGroup": row.spread.channels_per_group,
            "byChannel": _thousandths(row.spread.by_channel),
            "largestChannel": json_values(max(row.spread.by_channel, default=0.0)),
            "worstChannels": [[channel, json_values(error)] for channel, error in row.spread.worst_channels],
        }
    if row.local is not None:
        view["local"] = {"verdict": row.local.verdict, **_error_view(row.local, names)}
        if row.local.worst is not None:
            view["local"]["worst"] = _element_view(row.local.worst)
        if row.local.reason:
            view["local"]["reason"] = row.local.reason
    return view


def _error_view(error: LayerRow | LocalError, names: Sequence[str]) -> dict[str, Any]:
    """Figures in the order of ``names``, null where one is missing: the names would be half of a large page."""
    view: dict[str, Any] = {
        "metrics": [json_values(error.metrics[name]) if name in error.metrics else None for name in names],
        "budget": [json_values(error.budget[name]) if name in error.budget else None for name in names],
    }
    if error.failures:
        view["failed"] = [failure.metric for failure in error.failures]
    return view


def _element_view(element: WorstElement) -> list[Any]:
    return [element.case, list(element.index), json_values(element.reference), json_values(element.candidate)]


def _worst_elements(report: Report) -> list[dict[str, Any]]:
    """The layers' worst elements, those of the largest share of their budget first."""
    found: list[tuple[float, dict[str, Any]]] = []
    for row in report.layers:
        for kind, error in errors_of(row):
            if (worst := error.worst) is not None:
                share, _ = worst_share(error.metrics, error.budget, report.metrics)
                found.append((share, {"row": row, "error": kind, "worst": worst}))
    found.sort(key=lambda entry: -entry[0])
    return [view for _, view in found[:MAX_WORST]]


def _thousandths(values: Sequence[float]) -> list[int]:
    """Each value in thousandths of the largest: the height of a bar shows no more. What is not finite is as high."""
    largest = max((value for value in values if math.isfinite(value)), default=0.0) or 1.0
    return [round(1000 * value / largest) if math.isfinite(value) else 1000 for value in values]


def _as_text(value: Any) -> str:
    """A fact or an input as one line: a mapping as ``key value`` pairs."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_as_text(entry)}" for key, entry in value.items())
    if isinstance(value, list | tuple) and not value:
        return "none"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_as_text, value)) + "]"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return figure(value) if isinstance(value, float) else str(value)
