"""Budgets and verdicts: what error a layer may have, where that figure comes from, and whether it was kept.

    budget(metric) = K · max(error torch itself makes in this precision, one rounding of the layer's type)

Both errors are measured against the same fp64 run on the same inputs, so the budget grows with depth, width and
activation size as the arithmetic's own error does, and no figure is tuned.
"""

from __future__ import annotations

import math
from typing import Literal

from andrea_export.dtypes import DTYPES
from andrea_export.metrics import ErrorSums

Verdict = Literal["pass", "fail", "not-measured"]

# torch's error is one draw of this precision's rounding errors; another summation order, another exp is another draw.
# Measured over 747 layers (tiny, 12m and 120m, three seeds each, AMD Zen 3, onnxruntime 1.32; regenerate with
# scripts/measure_budget_ratio.py), onnxruntime's error was 0.46 to 1.27 of torch's in relative L2 and 0.48 to 1.85 in
# max abs. 4 leaves a factor of two above the largest draw seen for other processors' kernels.
K = 4.0

FORMULA = (
    f"budget = {K:g} x max(error of torch in the candidate's precision, unit roundoff of the layer's type x its "
    "largest value [max_abs] or x 1 [relative_l2]); all errors against torch fp64 on the same inputs; a layer passes "
    "if max_abs <= budget and relative_l2 <= budget and nothing is NaN or Inf on either side"
)


def budget_of(torch_error: ErrorSums, dtype: str) -> dict[str, float]:
    """The largest max_abs and relative_l2 a layer of this type (a key of ``dtypes.DTYPES``) may have."""
    roundoff = DTYPES[dtype].unit_roundoff
    return {
        "max_abs": K * max(torch_error.max_abs, roundoff * torch_error.max_reference),
        "relative_l2": K * max(torch_error.relative_l2, roundoff),
    }


def verdict_of(error: ErrorSums, budget: dict[str, float]) -> Verdict:
    """pass only if every metric is within budget and every value was finite; comparing nothing at all is no pass."""
    metrics = error.as_metrics()
    finite = error.num_nan == 0 and error.num_inf == 0
    within = all(math.isfinite(metrics[name]) and metrics[name] <= limit for name, limit in budget.items())
    return "pass" if finite and within and error.num_values > 0 else "fail"
