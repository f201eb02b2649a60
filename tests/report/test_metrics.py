"""Metrics against plain numpy, and where an error sits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from andrea_export.compare.inputs import cases_from_tokens
from andrea_export.report.metrics import METRICS, LayerErrors, ulp_distance


def errors_of(reference: np.ndarray, candidate: np.ndarray, dtype: str = "fp32") -> LayerErrors:
    errors = LayerErrors()
    errors.add("prefill", reference, candidate, dtype=dtype, positions=unpadded(reference))
    return errors


def unpadded(layer: np.ndarray) -> np.ndarray:
    """The positions of a layer's tokens where none is padding; its second axis from behind but one is the tokens'."""
    return np.tile(np.arange(layer.shape[-2]), (layer.shape[0], 1)) if layer.ndim > 1 else np.zeros((1, 1), int)


@given(hnp.arrays(np.float32, 5, elements=st.floats(-(2.0**100), 2.0**100, width=32)), st.integers(0, 3))
def test_a_value_moved_by_n_steps_is_n_ulp_away(values: np.ndarray, steps: int) -> None:
    moved = values.copy()
    for _ in range(steps):
        moved = np.nextafter(moved, np.float32(np.inf))
    np.testing.assert_array_equal(ulp_distance(values.astype(np.float64), moved, "fp32"), np.full(5, steps))


@pytest.mark.parametrize(
    ("dtype", "reference", "candidate", "expected"),
    [
        ("fp16", 1.0, 1.0 + 2**-10, 1),
        ("bf16", 1.0, 1.0 + 2**-7, 1),
        ("fp32", -0.0, 0.0, 0),
        ("fp32", -1.4e-45, 1.4e-45, 2),  # the smallest subnormal on either side of zero
        ("fp64", 1.0, 1.0 + 2**-52, 1),
        ("fp16", 1.0 + 2**-30, 1.0, 0),  # the reference is rounded to the type first
        ("bool", 1.0, 0.0, 1),
    ],
)
def test_ulp_distances_of_each_type(dtype: str, reference: float, candidate: float, expected: int) -> None:
    assert ulp_distance(np.array([reference]), np.array([candidate]), dtype).tolist() == [expected]


def test_the_percentile_and_the_histogram_of_ulps() -> None:
    reference = np.ones((1, 1, 2000))
    candidate = np.ones((1, 1, 2000), np.float32)
    candidate[0, 0, :2] = np.float32(1 + 5 * 2**-23)
    candidate[0, 0, 2:10] = np.float32(1 + 2**-23)
    errors = errors_of(reference, candidate)
    metrics = errors.as_metrics()
    assert metrics["max_ulp"] == 5.0
    assert metrics["p999_ulp"] == 1.0  # 1,998 of 2,000 are no further
    histogram = errors.ulp_histogram()
    assert histogram is not None
    assert dict(zip(histogram.edges, histogram.counts, strict=True)) == {0: 1990, 1: 8, 2: 0, 4: 2}


def test_the_worst_element_is_named_with_both_values_and_its_case() -> None:
    errors = LayerErrors()
    reference = np.zeros((2, 3, 4))
    candidate = reference.astype(np.float32)
    errors.add("prefill", reference, candidate, dtype="fp32")
    candidate = candidate.copy()
    candidate[1, 2, 3] = 0.5
    errors.add("decode", reference, candidate, dtype="fp32")
    worst = errors.worst
    assert worst is not None
    assert (worst.case, worst.index, worst.reference, worst.candidate) == ("decode", (1, 2, 3), 0.0, 0.5)


def test_nan_is_the_worst_element_there_is() -> None:
    reference = np.zeros((1, 2, 2))
    candidate = np.array([[[9.0, 0.0], [np.nan, 0.0]]], np.float32)
    worst = errors_of(reference, candidate).worst
    assert worst is not None and worst.index == (0, 1, 0) and np.isnan(worst.candidate)


def test_errors_by_position_and_by_channel() -> None:
    reference = np.zeros((2, 3, 4))
    candidate = np.zeros((2, 3, 4), np.float32)
    candidate[0, 1, 2], candidate[1, 2, 2] = 0.25, 0.5
    spread = errors_of(reference, candidate).spread()
    assert spread is not None
    assert spread.by_position == (0.0, 0.25, 0.5) and spread.by_channel == (0.0, 0.0, 0.5, 0.0)
    assert spread.worst_channels[0] == (2, 0.5)


def test_a_cache_has_positions_on_its_third_axis() -> None:
    reference = np.zeros((1, 2, 3, 4))  # [B, H, K, D]
    candidate = np.zeros((1, 2, 3, 4), np.float32)
    candidate[0, 1, 2, 3] = 1.0
    spread = errors_of(reference, candidate).spread()
    assert spread is not None
    assert spread.by_position == (0.0, 0.0, 1.0) and spread.worst_channels[0] == (7, 1.0)


def test_long_axes_are_grouped_and_keep_their_largest() -> None:
    candidate = np.zeros((1, 300, 200), np.float32)
    candidate[0, 299, 199] = 2.0
    spread = errors_of(np.zeros((1, 300, 200)), candidate).spread()
    assert spread is not None
    assert (spread.positions_per_group, len(spread.by_position), spread.by_position[-1]) == (3, 100, 2.0)
    assert (spread.channels_per_group, len(spread.by_channel), spread.by_channel[-1]) == (4, 50, 2.0)


def test_every_case_counts_and_each_token_stands_at_its_own_position() -> None:
    """Two rows, the second padded by two: its third column is its first token, its decode step comes after its last."""
    errors = LayerErrors()
    prefill, decode = np.zeros((2, 4, 3), np.float32), np.zeros((2, 1, 3), np.float32)
    prefill[1, 2, 0], prefill[1, 0, 1] = 0.5, 7.0  # a token's error, and a padded place's
    decode[0, 0, 2], decode[1, 0, 2] = 0.25, 0.125
    positions = np.array([[0, 1, 2, 3], [-1, -1, 0, 1]])
    errors.add("prefill", np.zeros((2, 4, 3)), prefill, dtype="fp32", positions=positions)
    after = np.array([[0, 1, 2, 3, 4], [-1, -1, 0, 1, 2]])
    errors.add("decode", np.zeros((2, 1, 3)), decode, dtype="fp32", positions=after)
    spread = errors.spread()
    assert spread is not None
    assert spread.cases == ("prefill", "decode")
    assert spread.by_position == (0.5, 0.0, 0.125, 0.0, 0.25)
    assert spread.by_channel == (0.5, 7.0, 0.25)


def test_a_case_knows_its_tokens_positions() -> None:
    prefill, decode = cases_from_tokens([[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11]])
    assert prefill.token_positions.tolist() == [[0, 1], [-1, 0]]
    assert decode.token_positions.tolist() == [[0, 1, 2, 3, 4, 5], [-1, 0, 1, 2, 3, 4]]


def test_infinities_are_counted_on_either_side() -> None:
    metrics = errors_of(np.array([[[np.inf, 1.0, 1.0]]]), np.array([[[np.inf, -np.inf, 1.0]]], np.float32)).as_metrics()
    assert (metrics["num_inf"], metrics["num_nan"], metrics["num_values"]) == (2, 0, 1)


def test_a_tensor_larger_than_one_piece_has_the_same_figures() -> None:
    generator = np.random.default_rng(0)
    reference = generator.standard_normal((3, 50, 130))
    candidate = (reference + 1e-3 * generator.standard_normal(reference.shape)).astype(np.float32)
    metrics = errors_of(reference, candidate).as_metrics()
    error = np.abs(candidate - reference)
    assert metrics["max_abs"] == error.max() and metrics["mean_abs"] == pytest.approx(error.mean())
    assert metrics["relative_l2"] == pytest.approx(np.linalg.norm(error) / np.linalg.norm(reference))
    worst = errors_of(reference, candidate).worst
    assert worst is not None and worst.index == np.unravel_index(error.argmax(), error.shape)


def test_bf16_layers_have_all_their_metrics() -> None:
    candidate = np.ones((1, 2, 3), ml_dtypes.bfloat16)
    assert set(errors_of(np.ones((1, 2, 3)), candidate, "bf16").as_metrics()) <= set(METRICS)
