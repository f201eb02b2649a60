"""How far one tensor is from another: the sums a comparison needs, gathered run by run, and the metrics read off them.

Everything is computed in float64. Nothing is judged here; ``judge.py`` holds the budgets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(slots=True, kw_only=True)
class ErrorSums:
    """The error of a layer over every run added so far; ``add`` is all that changes it."""

    num_values: int = 0
    num_nan: int = 0
    num_inf: int = 0
    max_abs: float = 0.0
    max_reference: float = 0.0
    sum_error_squared: float = 0.0
    sum_reference_squared: float = 0.0
    sum_candidate_squared: float = 0.0
    sum_product: float = 0.0

    def add(self, reference: npt.NDArray[Any], candidate: npt.NDArray[Any]) -> None:
        """Adds one run. Both arrays have one shape. NaN and Inf of either side are counted, never subtracted away."""
        expected = reference.astype(np.float64, copy=False)
        obtained = candidate.astype(np.float64, copy=False)
        finite = np.isfinite(expected) & np.isfinite(obtained)
        if not finite.all():
            self.num_nan += int((np.isnan(expected) | np.isnan(obtained)).sum())
            self.num_inf += int((np.isinf(expected) | np.isinf(obtained)).sum())
            expected, obtained = expected[finite], obtained[finite]
        self.num_values += expected.size
        if not expected.size:
            return
        error = obtained - expected
        self.max_abs = max(self.max_abs, float(np.abs(error).max()))
        self.max_reference = max(self.max_reference, float(np.abs(expected).max()))
        self.sum_error_squared += float(np.vdot(error, error))
        self.sum_reference_squared += float(np.vdot(expected, expected))
        self.sum_candidate_squared += float(np.vdot(obtained, obtained))
        self.sum_product += float(np.vdot(expected, obtained))

    @property
    def relative_l2(self) -> float:
        """‖candidate − reference‖ / ‖reference‖; 0 where both are all zero, infinite where only the reference is."""
        return _ratio(math.sqrt(self.sum_error_squared), math.sqrt(self.sum_reference_squared))

    @property
    def cosine(self) -> float:
        """The cosine between candidate and reference; 1 where both are all zero."""
        norms = math.sqrt(self.sum_reference_squared) * math.sqrt(self.sum_candidate_squared)
        if norms == 0.0:
            return 1.0 if self.sum_reference_squared == self.sum_candidate_squared else 0.0
        return min(1.0, self.sum_product / norms)

    def as_metrics(self) -> dict[str, int | float]:
        """The metrics a report row shows."""
        return {
            "max_abs": self.max_abs,
            "relative_l2": self.relative_l2,
            "cosine": self.cosine,
            "max_reference": self.max_reference,
            "num_nan": self.num_nan,
            "num_inf": self.num_inf,
            "num_values": self.num_values,
        }


def _ratio(numerator: float, denominator: float) -> float:
    if denominator == 0.0:
        return 0.0 if numerator == 0.0 else math.inf
    return numerator / denominator
