"""fp16 and bf16: all 65,536 inputs, with the device's approximate instructions exact and at their worst."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
import torch
from gelu_truth import BF16, FP16, Format, correctly_rounded, errors_in_ulp, gelu_truth
from numpy.typing import NDArray

from andrea_export.operators.build import HostGelu

# PTX ISA 9: ex2.approx.f32 is at most 2 ulp from the correctly rounded result (9.7.3.21 "Floating Point Instructions:
# ex2"), rcp.approx.f32 at most 1 ulp (9.7.3.13 "Floating Point Instructions: rcp"). 2^-22 and 2^-23 of the result, then
# rounded to fp32 by the host's model, reach that everywhere. exp2 is tried at twice that: what holds there holds with
# room.
EXP2_ERROR = 2.0**-21
RECIPROCAL_ERROR = 2.0**-23
CORNERS = [(0.0, 0.0), *itertools.product((-EXP2_ERROR, EXP2_ERROR), (-RECIPROCAL_ERROR, RECIPROCAL_ERROR))]

ALL_BITS = np.arange(65536, dtype=np.uint16)
TYPES = [
    pytest.param("fp16", np.dtype(np.float16), FP16, torch.float16, id="fp16"),
    pytest.param("bf16", np.dtype(ml_dtypes.bfloat16), BF16, torch.bfloat16, id="bf16"),
]


def wide_values(dtype: np.dtype[np.generic]) -> NDArray[np.float64]:
    """Every bit pattern as a float64; NaNs stay NaNs."""
    with np.errstate(invalid="ignore"):  # converting a signalling NaN raises the flag
        return ALL_BITS.view(dtype).astype(np.float64)


@pytest.mark.parametrize(("storage", "dtype", "form", "torch_type"), TYPES)
def test_every_input_is_within_one_ulp_of_the_correctly_rounded_value(
    host_gelu: HostGelu,
    measured: list[str],
    storage: str,
    dtype: np.dtype[np.generic],
    form: Format,
    torch_type: torch.dtype,
) -> None:
    x = wide_values(dtype)
    finite = np.isfinite(x)
    truth = gelu_truth(x[finite])
    nearest = correctly_rounded(truth, form)
    for exp2_error, reciprocal_error in CORNERS:
        result = host_gelu.apply(
            ALL_BITS.view(dtype),
            storage,
            exp2_relative_error=exp2_error,
            reciprocal_relative_error=reciprocal_error,
        )[finite]
        steps = errors_in_ulp(result, nearest, form)
        assert steps.max() <= 1
        # Any value but the nearest is the second nearest of a near tie: 0.5 ulp, and the fp32 intermediate's
        # error of at most 16 of its 24-bit units (4 of them exp2's, see above) seen from 11 mantissa bits: 16
        # / 2^13.
        real = errors_in_ulp(result, truth, form)
        assert real.max() <= 0.5 + 16 / 2**13
        measured.append(
            f"{storage}: modelled errors exp2 {exp2_error:+.1e}, rcp {reciprocal_error:+.1e}: "
            f"{np.mean(steps == 0):.4%} of {finite.sum()} finite inputs exactly rounded, "
            f"largest error {real.max():.4f} ulp"
        )


@pytest.mark.parametrize(("storage", "dtype", "form", "torch_type"), TYPES)
def test_no_input_is_worse_than_torch(
    host_gelu: HostGelu,
    measured: list[str],
    storage: str,
    dtype: np.dtype[np.generic],
    form: Format,
    torch_type: torch.dtype,
) -> None:
    x = wide_values(dtype)
    finite = np.isfinite(x)
    truth = gelu_truth(x[finite])
    ours = errors_in_ulp(host_gelu.apply(ALL_BITS.view(dtype), storage)[finite], truth, form)
    tensor = torch.from_numpy(ALL_BITS.view(np.int16)).view(torch_type)
    theirs_bits = torch.nn.functional.gelu(tensor, approximate="tanh").view(torch.int16).numpy()
    theirs = errors_in_ulp(theirs_bits.view(dtype)[finite], truth, form)
    assert np.count_nonzero(ours > theirs) == 0
    nearest = correctly_rounded(truth, form)
    exact = np.mean(theirs_bits.view(dtype)[finite].astype(np.longdouble) == nearest)
    measured.append(
        f"{storage}: torch {torch.__version__} on the same inputs: {exact:.4%} exactly rounded, "
        f"largest error {theirs.max():.4g} ulp; ours is worse at none"
    )


@pytest.mark.parametrize(("storage", "dtype", "form", "torch_type"), TYPES)
def test_special_values(
    host_gelu: HostGelu, storage: str, dtype: np.dtype[np.generic], form: Format, torch_type: torch.dtype
) -> None:
    infinity = np.inf
    largest = float((2 - 2.0**-form.mantissa_bits) * 2.0 ** (1 - form.min_exponent))
    smallest = 2.0 ** (form.min_exponent - form.mantissa_bits)
    given = np.array([0.0, -0.0, infinity, -infinity, largest, -largest, 2 * smallest, -2 * smallest], dtype)
    result = host_gelu.apply(given, storage).astype(np.float64)
    expected = [0.0, -0.0, infinity, -0.0, largest, -0.0, smallest, -smallest]
    assert result.tolist() == expected
    assert np.signbit(result).tolist() == np.signbit(expected).tolist()
    # Half of the smallest subnormal lies between it and zero: either is within an ulp, and the sign is kept.
    halves = host_gelu.apply(np.array([smallest, -smallest], dtype), storage).astype(np.float64)
    assert set(np.abs(halves)) <= {0.0, smallest}
    assert np.signbit(halves).tolist() == [False, True]


@pytest.mark.parametrize(("storage", "dtype", "form", "torch_type"), TYPES)
def test_every_nan_stays_a_nan_and_nothing_else_becomes_one(
    host_gelu: HostGelu, storage: str, dtype: np.dtype[np.generic], form: Format, torch_type: torch.dtype
) -> None:
    with np.errstate(invalid="ignore"):
        result = host_gelu.apply(ALL_BITS.view(dtype), storage).astype(np.float64)
    assert np.array_equal(np.isnan(result), np.isnan(wide_values(dtype)))


@pytest.mark.parametrize(("storage", "dtype", "form", "torch_type"), TYPES)
def test_large_values_pass_through_unchanged(
    host_gelu: HostGelu, storage: str, dtype: np.dtype[np.generic], form: Format, torch_type: torch.dtype
) -> None:
    x = wide_values(dtype)
    passing = np.isfinite(x) & (x >= 16)
    bits = host_gelu.apply(ALL_BITS.view(dtype), storage).view(np.uint16)
    assert np.array_equal(bits[passing], ALL_BITS[passing])
