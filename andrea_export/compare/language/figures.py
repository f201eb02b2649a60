"""How far a candidate's predictions are from the reference's, in figures."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea_export.compare.language.suite import GREEDY, Logits, Predictions, Suite
from andrea_export.core.dtypes import dtype_from_numpy
from andrea_export.report.metrics import ErrorSums
from andrea_export.report.schema import Number

_ROWS_AT_ONCE = 64  # positions whose probabilities are held in float64 at once


def figures(case: str, suite: Suite, reference: Predictions, candidate: Predictions) -> tuple[int, dict[str, Number]]:
    """(positions, metrics) of one case that both have."""
    if case == GREEDY:
        return suite.num_greedy, _greedy_figures(reference, candidate)
    metrics = _logit_figures(reference.logits[case], candidate.logits[case])
    targets = suite.text[1 : suite.cases[case] + 1]
    if case.startswith("context") and len(targets) == suite.cases[case]:
        metrics.update(_perplexities(reference.logits[case], candidate.logits[case], targets))
    return len(reference.logits[case]), metrics


def max_abs_errors(predictions: Logits, truth: Logits, suite: Suite) -> dict[str, float]:
    """Case → the largest error of one long run's logits as far as the case's context: what its budgets derive from.

    A context shorter than 128 is given 128 positions: the largest of a few errors would be a draw of its own. No basis
    is less than one rounding of the largest logit.
    """
    errors, sizes = np.zeros(suite.longest), np.zeros(suite.longest)
    for start in range(0, suite.longest, _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        errors[rows] = np.abs(predictions[rows].astype(np.float64) - truth[rows]).max(axis=1)
        sizes[rows] = np.abs(truth[rows]).max(axis=1)
    roundoff = dtype_from_numpy(predictions.dtype).unit_roundoff
    basis = np.maximum(errors, roundoff * sizes)
    return {case: float(basis[: max(context, suite.short)].max()) for case, context in suite.cases.items()}


def _logit_figures(reference: Logits, candidate: Logits) -> dict[str, Number]:
    sums = ErrorSums()
    agree, overlap, divergences = 0, 0, []
    flip1 = flip5 = 0.0
    num_top = min(5, reference.shape[1])
    for start in range(0, len(reference), _ROWS_AT_ONCE):
        expected = reference[start : start + _ROWS_AT_ONCE].astype(np.float64)
        obtained = candidate[start : start + _ROWS_AT_ONCE].astype(np.float64)
        sums.add(expected, obtained)
        top, chosen = expected.argmax(axis=1), obtained.argmax(axis=1)
        agree += int((top == chosen).sum())
        with np.errstate(invalid="ignore"):  # infinite logits are counted, and fail for that
            flip1 = max(flip1, float((_at(expected, top) - _at(expected, chosen)).max()))
        kept, margin = _top_overlap(expected, obtained, num_top)
        overlap += kept
        flip5 = max(flip5, margin)
        divergences.append(np.maximum(divergence(expected, obtained), 0.0))
    kl = np.concatenate(divergences)
    return {
        "max_abs": sums.max_abs,
        "num_nan": sums.num_nan,
        "num_inf": sums.num_inf,
        "top1_agreement": agree / len(reference),
        "top1_flip_margin": flip1,
        "top5_overlap": overlap / (num_top * len(reference)),
        "top5_flip_margin": flip5,
        "kl_mean": float(kl.mean()),
        "kl_p99": float(np.quantile(kl, 0.99, method="higher")),
        "kl_max": float(kl.max()),
    }


def _top_overlap(
    expected: npt.NDArray[np.float64], obtained: npt.NDArray[np.float64], num_top: int
) -> tuple[int, float]:
    """How many of the reference's likeliest are among the candidate's, and the largest lead of a lost over a gained."""
    kept, margin = 0, 0.0
    best = np.argpartition(expected, -num_top, axis=1)[:, -num_top:]
    found = np.argpartition(obtained, -num_top, axis=1)[:, -num_top:]
    for row, (wanted, got) in enumerate(zip(best, found, strict=True)):
        lost, gained = np.setdiff1d(wanted, got), np.setdiff1d(got, wanted)
        kept += num_top - lost.size
        if lost.size:
            margin = max(margin, float(expected[row, lost].max() - expected[row, gained].min()))
    return kept, margin


def divergence(reference_NV: Logits, candidate_NV: Logits) -> npt.NDArray[np.float64]:
    """KL(reference‖candidate) of each row in nats, in fp64; NaN where a logit is not finite.

    Where the two agree it is the rounding of its own sum, which may be below zero.
    """
    log_p, log_q = _log_softmax(reference_NV), _log_softmax(candidate_NV)
    with np.errstate(invalid="ignore"):
        found: npt.NDArray[np.float64] = (np.exp(log_p) * (log_p - log_q)).sum(axis=1)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How a candidate's next-token distributions stand to the reference's."""

    kl_mean: float
    """Mean of KL(reference ‖ candidate), in nats."""
    kl_max: float
    top1: float
    """Share of positions where both would say the same token."""


def agreement(reference_NV: Logits, candidate_NV: Logits) -> Agreement:
    """The agreement of two sets of logits, position by position."""
    kl_N = divergence(reference_NV, candidate_NV)
    same_N = reference_NV.argmax(axis=1) == candidate_NV.argmax(axis=1)
    return Agreement(kl_mean=float(kl_N.mean()), kl_max=float(kl_N.max()), top1=float(same_N.mean()))


def _perplexities(reference: Logits, candidate: Logits, targets: tuple[int, ...]) -> dict[str, Number]:
    expected, obtained = (_perplexity(logits, targets) for logits in (reference, candidate))
    return {
        "perplexity_reference": expected,
        "perplexity_candidate": obtained,
        "perplexity_difference": abs(obtained - expected) / expected,
    }


def _perplexity(logits: Logits, targets: tuple[int, ...]) -> float:
    total = 0.0
    for start in range(0, len(logits), _ROWS_AT_ONCE):
        rows = _log_softmax(logits[start : start + _ROWS_AT_ONCE].astype(np.float64))
        total += float(_at(rows, np.array(targets[start : start + _ROWS_AT_ONCE])).sum())
    with np.errstate(over="ignore"):
        return float(np.exp(-total / len(logits)))


def _greedy_figures(reference: Predictions, candidate: Predictions) -> dict[str, Number]:
    pairs = zip(reference.greedy_tokens, candidate.greedy_tokens, strict=True)
    length, margin = len(reference.greedy_tokens), 0.0
    prefix = next((index for index, (ours, theirs) in enumerate(pairs) if ours != theirs), length)
    if prefix < length:
        lead = reference.logits[GREEDY][prefix]
        margin = float(lead[reference.greedy_tokens[prefix]]) - float(lead[candidate.greedy_tokens[prefix]])
    return {"greedy_prefix": prefix, "greedy_length": length, "greedy_flip_margin": margin}


def _log_softmax(logits_NV: Logits) -> npt.NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        shifted = logits_NV.astype(np.float64) - logits_NV.max(axis=1, keepdims=True)
        result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def _at(rows: npt.NDArray[np.float64], columns: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    picked: npt.NDArray[np.float64] = rows[np.arange(len(rows)), columns]
    return picked
