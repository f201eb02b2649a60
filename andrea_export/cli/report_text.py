"""A report for people: the verdict first, what failed as expected against obtained, what was proven, what was not.

Pure: a report in, lines out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from andrea_export.cli.output import coloured, table, wrapped

if TYPE_CHECKING:
    from andrea_export.report.schema import LayerRow, Report

_MAX_LINES_BELOW_VERDICT = 20
_MAX_FAILING_ROWS = 20  # the rest is in report.json, and the first layer out of budget is named above them


def verdict_line(report: Report, subject: str) -> str:
    """The first line: the verdict, of what, and the first layer at fault."""
    if report.verdict == "pass":
        plural = "" if len(report.layers) == 1 else "s"
        rows = f"{len(report.layers)} layer comparison{plural} within budget"
        return f"{coloured('PASS', 'pass')} {subject}: {rows}{_not_measured(report)}"
    if report.first_failure:
        return f"{coloured('FAIL', 'fail')} {subject}: the first layer at fault is {report.first_failure}"
    return f"{coloured('FAIL', 'fail')} {subject}: {_why_failed(report)}"


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
    """Every failed check, and the failing layers as a table of expected and obtained; nothing where all passed."""
    for check in report.checks:
        if check.verdict == "fail":
            yield f"failed check {check.name}: {check.detail}"
    for candidate in report.candidates:
        if candidate.verdict == "fail":
            yield f"failed candidate {candidate.name}: {candidate.reason or 'see its layers'}"
    failed = [row for row in report.layers if row.verdict == "fail"]
    shown = failed[:_MAX_FAILING_ROWS]
    for name in dict.fromkeys(row.candidate for row in shown):  # a column for it would not fit 80
        yield ""
        yield f"out of budget in {name}"
        rows = [cells for row in shown if row.candidate == name for cells in _expected_and_obtained(row)]
        yield from (f"  {line}" for line in table(("layer", "metric", "expected at most", "obtained"), rows, left=2))
    if len(failed) > _MAX_FAILING_ROWS:
        yield f"and {len(failed) - _MAX_FAILING_ROWS} more layers out of budget"


def proof_lines(report: Report) -> Iterator[str]:
    """What was compared, by candidate: layers, the worst error against its budget, or why it was not measured."""
    reference = report.reference
    yield f"reference: {reference.get('name', '')}, {reference.get('weights', '')}"
    rows = []
    for candidate in report.candidates:
        mine = [row for row in report.layers if row.candidate == candidate.name]
        rows.append((candidate.name, candidate.verdict, str(len(mine)) if mine else "", _worst(mine, report)))
    yield from table(("candidate", "verdict", "layers", "worst error, as a share of its budget"), rows, left=4)
    for candidate in report.candidates:
        if candidate.verdict == "not-measured":
            yield from wrapped(f"not measured: {candidate.name}: {candidate.reason}")
    for check in report.checks:
        if check.verdict != "fail":
            yield from wrapped(f"checked: {check.name}: {check.detail}")
    yield from wrapped(f"formula: {report.formula}")


def _not_measured(report: Report) -> str:
    """What a pass does not speak for: ``; NOT MEASURED: a, b (why)``."""
    by_reason: dict[str, list[str]] = {}
    for candidate in report.candidates:
        if candidate.verdict == "not-measured":
            by_reason.setdefault(candidate.reason, []).append(candidate.name)
    told = [f"{', '.join(names)} ({reason})" for reason, names in by_reason.items()]
    return f"; NOT MEASURED: {'; '.join(told)}" if told else ""


def _why_failed(report: Report) -> str:
    if failed := [check.name for check in report.checks if check.verdict == "fail"]:
        return f"check {failed[0]} failed"
    if broken := [candidate for candidate in report.candidates if candidate.verdict == "fail"]:
        return f"{broken[0].name}: {broken[0].reason}"
    return "nothing could be measured here"


def _expected_and_obtained(row: LayerRow) -> list[tuple[str, str, str, str]]:
    if row.problem:
        return [(row.name, row.problem, "", "")]
    cells = [
        (row.name, metric, f"{limit:.3e}", f"{float(row.metrics[metric]):.3e}")
        for metric, limit in row.budget.items()
        if not float(row.metrics[metric]) <= limit
    ]
    counts = [
        (row.name, name.removeprefix("num_"), "0", f"{row.metrics[name]:.0f}")
        for name in ("num_nan", "num_inf")
        if row.metrics.get(name)
    ]
    return cells + counts


def _worst(rows: list[LayerRow], report: Report) -> str:
    """The largest metric/budget of all rows, with the layer it is in."""
    from andrea_export.report.render.wording import worst_of  # with the report comes pydantic

    worst = worst_of(rows, report.metrics)
    if worst is None:
        return ""
    times = f"{worst.share:.0%}" if worst.share <= 1 else f"{worst.share:.3g} times"
    local = "local " if worst.error == "local" else ""
    return f"{times}: {local}{worst.metric} {worst.value:.2e}, {worst.layer}"
