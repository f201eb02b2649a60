"""The outcome of a report: its exit code, and what it says was not measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from andrea_export.judge.policy import Policy
from andrea_export.judge.verdicts import ExitCode, Terms, judged, outcome
from andrea_export.report.schema import Candidate, Check, LanguageModelRow, LayerRow, Report

PASSED = Candidate(name="a", verdict="pass")
NO_GPU = Candidate(name="engine", verdict="not-measured", reason="needs a GPU")
LOGITS = LayerRow(name="logits", candidate="a", verdict="pass", metrics={}, budget={})
GELU = LayerRow(name="blocks.0.mlp.gelu", candidate="a", verdict="pass", metrics={}, budget={})
NOTHING = Report(reference={}, inputs={}, candidates=(), checks=(), layers=())
GOOD = replace(NOTHING, candidates=(PASSED,), layers=(LOGITS,))
STRICT = {"not_measured": "fail"}


@pytest.mark.parametrize(
    ("report", "code"),
    [
        (GOOD, ExitCode.PASSED),
        (replace(GOOD, candidates=(PASSED, NO_GPU)), ExitCode.PASSED),
        (replace(GOOD, candidates=(PASSED, NO_GPU), policy=STRICT), ExitCode.NOT_MEASURED),
        (replace(NOTHING, candidates=(NO_GPU,)), ExitCode.NOT_MEASURED),
        (replace(NOTHING, candidates=(PASSED, NO_GPU), layers=(GELU,)), ExitCode.NOT_MEASURED),
        (replace(GOOD, layers=(replace(LOGITS, verdict="not-measured"),)), ExitCode.NOT_MEASURED),
        (replace(GOOD, candidates=(replace(PASSED, verdict="fail"), NO_GPU)), ExitCode.FAILED),
        (replace(GOOD, layers=(LOGITS, replace(GELU, verdict="fail")), candidates=(PASSED, NO_GPU)), ExitCode.FAILED),
        (replace(NOTHING, candidates=(NO_GPU,), checks=(Check(name="files", verdict="fail", detail=""),)),
         ExitCode.FAILED),
        (replace(NOTHING, candidates=(PASSED,), layers=(GELU,)), ExitCode.FAILED),
        (NOTHING, ExitCode.FAILED),
    ],
)  # fmt: skip
def test_the_code_is_0_for_a_pass_3_where_nothing_failed_but_was_not_measured_else_1(
    report: Report, code: ExitCode
) -> None:
    assert outcome(report).code == code


def test_the_codes_are_those_the_readme_gives() -> None:
    assert [(code.name, int(code)) for code in ExitCode] == [("PASSED", 0), ("FAILED", 1), ("NOT_MEASURED", 3)]


def test_what_was_not_measured_is_named_with_its_reason() -> None:
    case = LanguageModelRow(
        candidate="a", case="context 1", context=1, num_positions=0, verdict="not-measured", metrics={}, budget={},
        reason="the profile takes 1 token",
    )  # fmt: skip
    missing = replace(GELU, verdict="not-measured", problem="missing: no such value")
    report = replace(
        GOOD,
        candidates=(PASSED, NO_GPU),
        layers=(LOGITS, missing, replace(missing, name="ln_f"), replace(missing, candidate="engine")),
        language_model=(case, replace(case, candidate="engine")),
    )
    said = [(entry.name, entry.reason) for entry in outcome(report).unmeasured]
    assert said == [
        ("engine", "needs a GPU"),
        ("blocks.0.mlp.gelu, ln_f of a", "missing: no such value"),
        ("context 1 of a", "the profile takes 1 token"),
    ]


def test_judging_again_under_the_reports_own_policy_does_not_change_the_outcome(clean: Report) -> None:
    report = judged(replace(clean, candidates=(*clean.candidates, NO_GPU)), Terms())
    assert outcome(report).code is ExitCode.NOT_MEASURED
    lenient = judged(report, Terms(policy=Policy(not_measured="pass")))
    assert outcome(lenient).code is ExitCode.PASSED and outcome(lenient).unmeasured == outcome(report).unmeasured
