"""Metrics and verdicts: the figures against plain numpy, and everything that must never pass."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from andrea_export.judge.budget import K, budget_of, failures_of
from andrea_export.report.metrics import ErrorSums
from andrea_export.report.schema import Candidate, Check, LayerRow, Report


def sums(reference: object, candidate: object) -> ErrorSums:
    result = ErrorSums()
    result.add(np.asarray(reference, np.float64), np.asarray(candidate, np.float64))
    return result


@given(hnp.arrays(np.float64, (2, 7), elements=st.floats(-1e6, 1e6)))
def test_sums_over_two_runs_are_those_of_one_long_run(pair: np.ndarray) -> None:
    reference, candidate = pair
    split = ErrorSums()
    split.add(reference[:3], candidate[:3])
    split.add(reference[3:], candidate[3:])
    whole = sums(reference, candidate)
    assert split.max_abs == whole.max_abs == np.abs(candidate - reference).max()
    assert split.relative_l2 == pytest.approx(whole.relative_l2)
    assert split.num_values == whole.num_values == 7


def test_relative_l2_and_cosine() -> None:
    error = sums([3.0, 4.0], [3.0, 4.5])
    assert error.relative_l2 == pytest.approx(0.1)
    assert error.cosine == pytest.approx((9 + 18) / (5 * math.hypot(3, 4.5)))
    assert sums([0.0], [0.0]).relative_l2 == 0.0
    assert sums([0.0], [1.0]).relative_l2 == math.inf


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        ([1.0, math.nan], [1.0, math.nan]),
        ([1.0, math.inf], [1.0, math.inf]),
        ([1.0, 2.0], [1.0, math.nan]),
        ([], []),
        ([0.0], [1e-30]),
    ],
)
def test_what_must_never_pass(reference: list[float], candidate: list[float]) -> None:
    exact = sums(np.zeros(1), np.zeros(1))
    assert failures_of(sums(reference, candidate).as_metrics(), budget_of(exact, "fp32"))


def test_the_budget_is_torchs_error_or_one_rounding() -> None:
    torch_error = sums([1.0, 8.0], [1.0, 8.001])
    assert budget_of(torch_error, "fp32")["max_abs"] == pytest.approx(K * 0.001)
    exact = sums([1.0, 8.0], [1.0, 8.0])
    assert budget_of(exact, "fp32") == {"max_abs": K * 2.0**-24 * 8.0, "relative_l2": K * 2.0**-24}
    assert budget_of(exact, "bool") == {"max_abs": 0.0, "relative_l2": 0.0}


def test_the_boundary_is_part_of_the_budget() -> None:
    error = sums([1.0], [1.5])
    assert not failures_of(error.as_metrics(), {"max_abs": 0.5, "relative_l2": 0.5})
    assert failures_of(error.as_metrics(), {"max_abs": np.nextafter(0.5, 0), "relative_l2": 0.5})
    assert failures_of(error.as_metrics(), {"max_abs": 0.5, "relative_l2": np.nextafter(0.5, 0)})


def report(
    *, candidates: tuple[Candidate, ...] = (), checks: tuple[Check, ...] = (), layers: tuple[LayerRow, ...] = ()
) -> Report:
    return Report(
        reference={}, inputs={}, candidates=candidates, checks=checks, layers=layers, layer_order=("first", "second")
    )


def row(name: str, verdict: str, candidate: str = "c") -> LayerRow:
    return LayerRow(name=name, candidate=candidate, verdict=verdict, metrics={}, budget={})  # type: ignore[arg-type]


def test_nothing_measured_is_no_pass() -> None:
    assert report().verdict == "fail"
    assert report(candidates=(Candidate(name="c", verdict="not-measured", reason="needs a GPU"),)).verdict == "fail"


PASSED, LOGITS = Candidate(name="a", verdict="pass"), row("logits", "pass", "a")


def test_not_measured_beside_a_pass_does_not_fail() -> None:
    not_measured = Candidate(name="b", verdict="not-measured")
    assert report(candidates=(PASSED, not_measured), layers=(LOGITS,)).verdict == "pass"


def test_a_pass_needs_the_logits_of_the_candidate_that_passed() -> None:
    """Rows of the plugin's maths, or of another candidate, say nothing of the model."""
    assert report(candidates=(PASSED,), layers=(row("blocks.0.mlp.gelu", "pass", "a"),)).verdict == "fail"
    assert report(candidates=(PASSED,), layers=(row("logits", "pass", "b"),)).verdict == "fail"
    assert report(candidates=(PASSED,), layers=(row("logits", "not-measured", "a"),)).verdict == "fail"


def test_one_failure_anywhere_fails_the_whole() -> None:
    assert report(candidates=(PASSED,), layers=(LOGITS,)).verdict == "pass"
    failed = Candidate(name="b", verdict="fail")
    assert report(candidates=(PASSED, failed), layers=(LOGITS,)).verdict == "fail"
    check = Check(name="files", verdict="fail", detail="")
    assert report(candidates=(PASSED,), layers=(LOGITS,), checks=(check,)).verdict == "fail"
    assert report(candidates=(PASSED,), layers=(LOGITS, row("first", "fail"))).verdict == "fail"


def test_the_first_failure_is_first_in_model_order_whatever_named_it() -> None:
    weights = Check(name="weights", verdict="fail", detail="", layer="first")
    assert report(layers=(row("second", "fail"),), checks=(weights,)).first_failure == "first"
    assert report(layers=(row("second", "pass"),)).first_failure is None
