"""The outcome of a judged report: one exit code, and what could not be measured. The same report has the same outcome
in every command."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from andrea_export.report.schema import Report
from andrea_export.report.unmeasured import Unmeasured, unmeasured


class ExitCode(IntEnum):
    """What a command that judges a report ends with."""

    PASSED = 0
    FAILED = 1
    NOT_MEASURED = 3


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
    absent = tuple(unmeasured(report))
    if report.verdict == "pass":
        code = ExitCode.PASSED
    elif absent and "fail" not in report.verdicts:
        code = ExitCode.NOT_MEASURED
    else:
        code = ExitCode.FAILED
    return Outcome(code=code, unmeasured=absent)
