"""What every rendering says in the same words: the headline, each failing figure, what was not measured, how a figure
is written.

Owns the words and the order in which failures are shown; judges nothing.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from andrea_export.report.schema import Candidate, Failure, LayerRow, LocalError, Metric, Report, is_at_fault

SIGNS = {"at most": "≤", "at least": "≥"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong: a figure beyond its limit or, where ``failure`` is None, the sentence in ``problem``."""

    candidate: str
    where: str
    """A layer, a case of the language model, or a check."""
    error: str
    """``local``, ``accumulated``, ``language model``, ``ratchet``, ``check`` or ``candidate``."""
    failure: Failure | None = None
    problem: str = ""
    inherited: bool = False
    """Whether an earlier layer is at fault and this one may merely suffer from it."""

    @property
    def is_layer(self) -> bool:
        """Whether it is a layer's error."""
        return self.error in ("local", "accumulated")

    @property
    def metric(self) -> str:
        """The figure's, or nothing."""
        return self.failure.metric if self.failure else ""

    @property
    def expected(self) -> str:
        """The limit with its sign, or nothing."""
        return limit_as_text(self.failure) if self.failure else ""

    @property
    def obtained(self) -> str:
        """The figure that was found; the problem where there is no figure."""
        return figure(self.failure.obtained) if self.failure else self.problem


def figure(value: float) -> str:
    """A figure for people: counts whole, everything else with three significant digits, ``inf`` and ``nan`` by name."""
    if not math.isfinite(value):
        return str(float(value))
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.2e}" if abs(value) < 1e-2 or abs(value) >= 1e4 else f"{value:.4g}"


def limit_as_text(failure: Failure) -> str:
    """What a figure was expected to be: ``≤ 1.04e-02``."""
    return f"{SIGNS[failure.relation]} {figure(failure.expected)}"


def excess(failure: Failure) -> str:
    """How far beyond its limit a figure is, as a phrase: ``10 times the budget``; empty where no factor says it."""
    share = share_of_limit(failure.obtained, failure.expected, higher_is_better=failure.relation == "at least")
    return f"{share:,.3g} times the budget" if math.isfinite(share) and failure.relation == "at most" else ""


def share_of_limit(obtained: float, limit: float, *, higher_is_better: bool = False) -> float:
    """How much of its budget a figure uses; above 1 it is out. Infinite where nothing is allowed and something is."""
    if higher_is_better:
        obtained, limit = limit, obtained
    if math.isnan(obtained) or math.isnan(limit):
        return math.inf
    if limit <= 0.0:
        return 0.0 if obtained <= limit else math.inf
    return obtained / limit


def worst_share(
    metrics: Mapping[str, float], budget: Mapping[str, float], table: Mapping[str, Metric]
) -> tuple[float, str]:
    """The largest share of a budget among a row's metrics, and which metric it is; (0, "") where nothing is judged."""
    shares = [
        (share_of_limit(float(metrics[name]), limit, higher_is_better=is_higher_better(name, table)), name)
        for name, limit in budget.items()
        if name in metrics
    ]
    return max(shares, default=(0.0, ""), key=lambda entry: entry[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Worst:
    """The figure of a layer that uses the largest share of its budget."""

    share: float
    error: str
    """``accumulated`` or ``local``."""
    metric: str
    value: float
    layer: str


def worst_of(rows: Iterable[LayerRow], table: Mapping[str, Metric]) -> Worst | None:
    """The worst figure of these layers, accumulated and local alike; None where nothing is judged."""
    found = []
    for row in rows:
        for kind, error in errors_of(row):
            share, metric = worst_share(error.metrics, error.budget, table)
            if metric:
                value = float(error.metrics[metric])
                found.append(Worst(share=share, error=kind, metric=metric, value=value, layer=row.name))
    return max(found, default=None, key=lambda worst: worst.share)


def errors_of(row: LayerRow) -> Iterator[tuple[str, LayerRow | LocalError]]:
    """The accumulated error of a layer and, where it has one, the local."""
    yield "accumulated", row
    if row.local is not None:
        yield "local", row.local


def is_higher_better(metric: str, table: Mapping[str, Metric]) -> bool:
    """Whether a metric's limit is a lower one."""
    return metric in table and table[metric].better == "higher"


def rows_of(report: Report, candidate: str) -> list[LayerRow]:
    """The layers of one candidate in model order."""
    position = report.position_of()
    return sorted((row for row in report.layers if row.candidate == candidate), key=lambda row: position(row.name))


def findings(report: Report) -> tuple[Finding, ...]:
    """Everything that is wrong, what is at fault before what merely suffers from it, each in model order."""
    return (*_layer_findings(report), *_other_findings(report))


def headline(report: Report) -> str:
    """The verdict's reason in one sentence, without the word pass or fail."""
    names = [candidate.name for candidate in report.candidates if candidate.verdict != "not-measured"]
    if report.verdict == "pass":
        unmeasured = len(report.candidates) - len(names)
        also = f"; {unmeasured} not measured" if unmeasured else ""
        return (
            f"{_count(len(report.layers), 'layer comparison')} within budget, {_count(len(names), 'candidate')}{also}"
        )
    found = findings(report)
    named = [finding for finding in found if finding.where == report.first_failure]
    if named:
        return f"{report.first_failure} is the first layer at fault: {_sentence(named[0])}"
    if found:
        return f"{found[0].where}: {_sentence(found[0])}"
    reasons = [candidate.reason for candidate in report.candidates if candidate.reason]
    why = f": {reasons[0]}" if reasons else ""
    num_measured = sum(row.verdict == "pass" for row in report.layers)
    if num_measured:
        return f"{_count(num_measured, 'layer comparison')} within budget, but not all could be measured{why}"
    return f"nothing could be measured{why}"


def reference_as_text(report: Report) -> str:
    """What the candidates were held against: its name and its weights."""
    return ", ".join(filter(None, (report.reference.get("name", ""), report.reference.get("weights", ""))))


def counts(report: Report, candidate: Candidate) -> tuple[int, int]:
    """(layers compared, layers that failed) of one candidate."""
    rows = [row for row in report.layers if row.candidate == candidate.name]
    return len(rows), sum(row.verdict == "fail" for row in rows)


def _layer_findings(report: Report) -> Iterator[Finding]:
    position = report.position_of()
    failed = [row for row in report.layers if row.verdict == "fail"]
    failed.sort(key=lambda row: (not is_at_fault(row), position(row.name)))
    candidates_at_fault = {row.candidate for row in failed if is_at_fault(row)}
    for row in failed:
        inherited = not is_at_fault(row) and row.candidate in candidates_at_fault
        if row.local is None or not row.local.metrics:  # nothing tells its own error: the first such layer is shown
            candidates_at_fault.add(row.candidate)
        if row.problem:
            yield Finding(candidate=row.candidate, where=row.name, error="accumulated", problem=row.problem)
        if row.local is not None:
            for failure in row.local.failures:
                yield Finding(candidate=row.candidate, where=row.name, error="local", failure=failure)
        for failure in row.failures:
            yield Finding(
                candidate=row.candidate, where=row.name, error="accumulated", failure=failure, inherited=inherited
            )


def _other_findings(report: Report) -> Iterator[Finding]:
    for check in report.checks:
        if check.verdict == "fail":
            yield Finding(candidate="", where=check.layer or check.name, error="check", problem=check.detail)
    for lm in report.language_model:
        for failure in lm.failures:
            yield Finding(candidate=lm.candidate, where=lm.case, error="language model", failure=failure)
        if lm.verdict == "fail" and not lm.failures:
            yield Finding(candidate=lm.candidate, where=lm.case, error="language model", problem=lm.reason or "failed")
    for entry in report.ratchet:
        if entry.verdict == "fail":
            yield Finding(candidate=entry.candidate, where=entry.name, error="ratchet", failure=entry.as_failure)
    failed_rows = {row.candidate for row in report.layers if row.verdict == "fail"}
    failed_rows |= {lm.candidate for lm in report.language_model if lm.verdict == "fail"}
    for candidate in report.candidates:
        if candidate.verdict == "fail" and candidate.name not in failed_rows:
            yield Finding(
                candidate=candidate.name, where=candidate.name, error="candidate", problem=candidate.reason or "failed"
            )


def _sentence(finding: Finding) -> str:
    of = f" in {finding.candidate}" if finding.candidate and finding.candidate != finding.where else ""
    if finding.failure is None:
        return f"{finding.problem}{of}"
    beyond = excess(finding.failure)
    return (
        f"{finding.error} {finding.failure.metric} {finding.obtained}, expected {finding.expected}"
        f"{f' ({beyond})' if beyond else ''}{of}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasured:
    """One thing that could not be measured, and why."""

    name: str
    """A candidate, a check, or some of a candidate's layers or cases."""
    reason: str


def unmeasured(report: Report) -> Iterator[Unmeasured]:
    """Candidates, then checks; of a candidate that was measured in part its layers and cases, an entry a reason."""
    absent = [candidate for candidate in report.candidates if candidate.verdict == "not-measured"]
    yield from (Unmeasured(name=candidate.name, reason=candidate.reason) for candidate in absent)
    for check in report.checks:
        if check.verdict == "not-measured":
            yield Unmeasured(name=check.name, reason=check.detail)
    parts = [(row.candidate, row.problem, row.name) for row in report.layers if row.verdict == "not-measured"]
    parts += [(row.candidate, row.reason, row.case) for row in report.language_model if row.verdict == "not-measured"]
    names: dict[tuple[str, str], list[str]] = {}
    for candidate, reason, name in parts:
        names.setdefault((candidate, reason), []).append(name)
    absent_names = {candidate.name for candidate in absent}
    for (candidate, reason), of_candidate in names.items():
        if candidate not in absent_names:
            yield Unmeasured(name=f"{', '.join(of_candidate)} of {candidate}", reason=reason)
