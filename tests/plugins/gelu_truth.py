"""GELU's tanh form to more digits than any storage type has, and distances in units in the last place.

x * 0.5 * (1 + tanh(u)) = x / (1 + exp(-2u)): the right side has no cancellation, so numpy's long double (64
or more mantissa bits) carries it for every x. test_accuracy checks it against mpmath at 100 digits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.longdouble]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A binary floating-point format: explicit mantissa bits, and the exponent of its smallest normal number."""

    mantissa_bits: int
    min_exponent: int


FP32 = Format(mantissa_bits=23, min_exponent=-126)
FP16 = Format(mantissa_bits=10, min_exponent=-14)
BF16 = Format(mantissa_bits=7, min_exponent=-126)


def gelu_truth(x: NDArray[np.generic]) -> Reals:
    """GELU of finite values, within a few units of long double's last place.

    GELU(x) lies above x / 2 for every x but 0, by 0.8 x^2. Where that is beyond a long double, the next number above
    x / 2 stands for it, so that what looks like a tie is rounded to the right side.
    """
    wide = x.astype(np.longdouble)
    root = np.longdouble("0.797884560802865355879892119868763737")  # sqrt(2 / pi)
    with np.errstate(over="ignore", under="ignore"):  # exp's infinity gives the right zero
        u = root * (wide + np.longdouble("0.044715") * wide * wide * wide)
        result = wide / (1 + np.exp(-2 * u))
        tiny = (wide != 0) & (np.abs(wide) < 2.0**-70)
        return np.where(tiny, np.nextafter(wide / 2, np.longdouble(np.inf)), result)


def ulp(value: Reals, form: Format) -> Reals:
    """The spacing of the format's numbers at `value`; below its normal range, that of the subnormals."""
    _, exponent = np.frexp(np.abs(value))
    exponent = np.where(value == 0, form.min_exponent, np.maximum(exponent - 1, form.min_exponent))
    return np.ldexp(np.longdouble(1), exponent - form.mantissa_bits)


def errors_in_ulp(result: NDArray[np.generic], truth: Reals, form: Format) -> NDArray[np.float64]:
    """|result - truth| in the format's ulps at the truth."""
    return (np.abs(result.astype(np.longdouble) - truth) / ulp(truth, form)).astype(np.float64)


def correctly_rounded(truth: Reals, form: Format) -> Reals:
    """The format's number nearest to the truth, ties to even, as a long double (finite values only)."""
    spacing = ulp(truth, form)
    return np.rint(truth / spacing) * spacing
