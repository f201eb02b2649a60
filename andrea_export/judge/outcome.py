"""The outcome of a judged report: one exit code, and what could not be measured. The same report has the same outcome
in every command."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from andrea_export.report.schema import Report


class ExitCode(IntEnum):
    """What a command that judges a report ends with."""

    PASSED = 0
    FAILED = 1
    NOT_MEASURED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasured:
    """One thing that could not be measured, and why."""

    name: str
    """A candidate, a check, or some of a candidate's layers or cases."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a report came out."""

    code: ExitCode
    unmeasured: tuple[Unmeasured, ...]
    """Everything that was not measured, whatever the code: a pass does not speak for it either."""


def outcome(report: Report) -> Outcome:
    """PASSED where the verdict is pass; NOT_MEASURED where nothing failed and something was not measured; else FAILED.

    A report in which nothing failed, everything was measured and yet no candidate's logits were compared is FAILED.
    """
    unmeasured = tuple(_unmeasured(report))
    if report.verdict == "pass":
        return Outcome(code=ExitCode.PASSED, unmeasured=unmeasured)
    only_unmeasured = unmeasured and "fail" not in report.verdicts
    return Outcome(code=ExitCode.NOT_MEASURED if only_unmeasured else ExitCode.FAILED, unmeasured=unmeasured)


def _unmeasured(report: Report) -> Iterator[Unmeasured]:
    """Candidates and checks; of a candidate that was measured in part its layers and cases, an entry a reason."""
    whole = [candidate for candidate in report.candidates if candidate.verdict == "not-measured"]
    yield from (Unmeasured(name=candidate.name, reason=candidate.reason) for candidate in whole)
    yield from (
        Unmeasured(name=check.name, reason=check.detail) for check in report.checks if check.verdict == "not-measured"
    )
    parts: dict[tuple[str, str], list[str]] = {}
    for row in report.layers:
        if row.verdict == "not-measured":
            parts.setdefault((row.candidate, row.problem), []).append(row.name)
    for case in report.language_model:
        if case.verdict == "not-measured":
            parts.setdefault((case.candidate, case.reason), []).append(case.case)
    named = {candidate.name for candidate in whole}
    for (candidate, reason), names in parts.items():
        if candidate not in named:
            yield Unmeasured(name=f"{candidate}: {', '.join(names)}", reason=reason)
