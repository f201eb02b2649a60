"""What a report says nothing of: everything in it that could not be measured, with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from andrea_export.report.schema import Report


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
