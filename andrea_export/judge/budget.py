"""Budgets: what error a layer may have, where that figure comes from, and which figures do not keep it.

    budget(metric) = K · max(error torch itself makes in this precision, one rounding of the layer's type)

Both errors are measured against the same fp64 run on the same inputs, so the budget grows with depth, width and
activation size as the arithmetic's own error does, and no figure is tuned.
"""

import math
from collections.abc import Mapping

import numpy as np

from andrea_export.core.dtypes import DTYPES
from andrea_export.report.metrics import METRICS, ErrorSums
from andrea_export.report.schema import Failure, Number, Relation

# torch's error is one draw of a precision's rounding errors; another summation order, another exp is another draw.
# scripts/measure_budget_ratio.py on an AMD EPYC, onnxruntime 1.32 on the CPU: in fp32, over 747 layers (tiny,
# 12m and 120m, three seeds each), onnxruntime's accumulated error was 0.46 to 1.27 of torch's in relative L2 and 0.48
# to 1.85 in max abs; over 204 layers (tiny and 12m, two seeds each) its local error was 0.42 to 1.38 and 0.48 to 1.78,
# and in fp16, with the graph its engines are built from, no ratio was above 1.30. 4 leaves a factor of two above the
# largest draw seen, for other processors' kernels. It has not been measured on a GPU: engines are judged by the same 4
# on the strength of the same reasoning, and so is the plugin's maths on the host.
K = 4.0
K_REASON = (
    "onnxruntime's errors on the CPU were 0.40 to 1.85 of torch's own (fp32 and fp16, accumulated and local); 4 leaves "
    "a factor of two above the largest"
)

# Never allowed, whatever a policy says: NaN on both sides compares equal nowhere, and infinities have no difference.
_FORBIDDEN = ("num_nan", "num_inf")


def formula(k: float) -> str:
    """The budget in words, for a report."""
    return (
        f"budget = {k:g} x max(error of torch in the candidate's precision, unit roundoff of the layer's type x its "
        "largest value [max_abs], its mean size [mean_abs] or 1 [relative_l2]); all errors against the same reference "
        "on the same inputs, accumulated and local alike; a layer passes if every metric with a budget keeps it and "
        "nothing is NaN or Inf on either side"
    )


def basis_of(torch_error: ErrorSums, dtype: str) -> dict[str, float]:
    """What budgets are multiples of, for a layer of this type (a key of ``dtypes.DTYPES``)."""
    roundoff = DTYPES[dtype].unit_roundoff
    mean_reference = math.sqrt(torch_error.sum_reference_squared / max(torch_error.num_values, 1))  # at least the mean
    return {
        "max_abs": max(torch_error.max_abs, roundoff * torch_error.max_reference),
        "mean_abs": max(torch_error.mean_abs, roundoff * mean_reference),
        "relative_l2": max(torch_error.relative_l2, roundoff),
    }


def budget_of(torch_error: ErrorSums, dtype: str, k: float = K) -> dict[str, float]:
    """The largest max_abs and relative_l2 a layer of this type may have, by default."""
    basis = basis_of(torch_error, dtype)
    return {name: k * basis[name] for name in ("max_abs", "relative_l2")}


def relation_of(metric: str) -> Relation:
    """Which side of its limit a metric must stay on."""
    return "at least" if METRICS[metric].better == "higher" else "at most"


def failures_of(metrics: Mapping[str, Number], budget: Mapping[str, float]) -> tuple[Failure, ...]:
    """Every metric that is out of its budget, and every NaN or Inf; a metric that was not measured fails as NaN.

    A layer passes where this is empty. Comparing nothing at all is a failure too: ``num_values`` at least 1.
    """
    failures = [
        Failure(metric=name, relation=relation_of(name), expected=limit, obtained=float(metrics.get(name, math.nan)))
        for name, limit in budget.items()
        if not keeps(float(metrics.get(name, math.nan)), limit, relation_of(name))
    ]
    failures += [
        Failure(metric=name, relation="at most", expected=0.0, obtained=float(metrics[name]))
        for name in _FORBIDDEN
        if metrics.get(name)
    ]
    if metrics.get("num_values") == 0:
        failures.append(Failure(metric="num_values", relation="at least", expected=1.0, obtained=0.0))
    return tuple(failures)


def keeps(value: float, limit: float, relation: Relation) -> bool:
    """Whether a finite value is on the right side of its limit; the limit itself is allowed."""
    if not math.isfinite(value):
        return False
    return value <= limit if relation == "at most" else value >= limit


def derived_budget(metrics: Mapping[str, Number], delta: float) -> dict[str, float]:
    """What follows for each metric if no logit is off by more than ``delta``: nothing here is chosen.

    A choice can only flip where the reference's lead is at most 2δ. KL(p‖q) = log E_p[e^d] − E_p[d] for d the logits'
    difference, whose range is 2δ: at most (2δ)²/8 (Hoeffding's lemma). Each −log p moves by at most 2δ, so the
    perplexity by at most a factor e^2δ.
    """
    # The rounding of float64's own sums over a vocabulary: 8449 · 2⁻⁵³ is 9.4e-13.
    floor = 1e-12
    limits = {
        "max_abs": delta,
        "top1_flip_margin": 2 * delta,
        "top5_flip_margin": 2 * delta,
        "kl_max": delta**2 / 2 + floor,
        "perplexity_difference": float(np.expm1(2 * delta)) + floor,
        "greedy_flip_margin": 2 * delta,
    }
    return {name: limit for name, limit in limits.items() if name in metrics}
