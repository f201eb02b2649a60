"""What errors do to the language model: the same text through both, and what they predict.

One long run of the reference serves every context, for attention is causal: its first L predictions are those of a run
of L tokens. The candidate is really run at every context, in a left-padded batch, and step by step with its cache.
Owns the cases and the figures; judges nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea_export.compare.inputs import Arrays
from andrea_export.core.dtypes import DTYPES, dtype_from_numpy
from andrea_export.core.errors import RunError
from andrea_export.core.precision import PRECISIONS
from andrea_export.report.metrics import ErrorSums
from andrea_export.report.schema import Number
from andrea_export.sessions.base import Session, cache_from, zero_cache
from andrea_export.sessions.generation import greedy
from andrea_model.config import AndreaConfig

Logits = npt.NDArray[Any]

CONTEXTS = (1, 2, 128, 1023, 1024)
NUM_STEPS = 16  # of the step-by-step decode
NUM_GREEDY = 32
_PADDED, _DECODE, _GREEDY = "left-padded batch", "decode with cache", "greedy"
_ROWS_AT_ONCE = 64  # positions whose probabilities are held in float64 at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The cases that a text allows in a model's context."""

    config: AndreaConfig
    text: tuple[int, ...]

    @property
    def contexts(self) -> tuple[int, ...]:
        """Those that the text fills."""
        return tuple(length for length in CONTEXTS if length <= min(len(self.text), self.config.n_ctx))

    @property
    def longest(self) -> int:
        """How much of the text the reference is run on."""
        return max(self.contexts)

    @property
    def longest_case(self) -> str:
        """The case of that run."""
        return f"context {self.longest}"

    @property
    def short(self) -> int:
        """The context of the padded, the stepwise and the greedy case."""
        return min(128, self.longest)

    @property
    def padded_lengths(self) -> tuple[int, ...]:
        """Three rows that begin like the text, the longest unpadded."""
        return (self.short, max(1, self.short // 2 + 1), max(1, self.short // 8))

    @property
    def num_steps(self) -> int:
        """Steps of the decode case; at least one token is given before them."""
        return min(NUM_STEPS, self.short - 1)

    @property
    def prompt(self) -> tuple[int, ...]:
        """What the greedy continuations continue."""
        return self.text[: max(1, self.short // 4)]

    @property
    def num_greedy(self) -> int:
        """How many tokens they add."""
        return min(NUM_GREEDY, self.config.n_ctx - len(self.prompt))

    @property
    def cases(self) -> dict[str, int]:
        """Case → its context, in the report's order."""
        decode = {_DECODE: self.short} if self.num_steps else {}
        contexts = {f"context {length}": length for length in self.contexts}
        return {**contexts, _PADDED: self.short, **decode, _GREEDY: len(self.prompt) + self.num_greedy}


@dataclass(slots=True, kw_only=True)
class Predictions:
    """What one model predicts: case → logits ``[N, V]`` of the case's positions, and its greedy continuation.

    A case that could not be run is in ``problems``, with the reason.
    """

    logits: dict[str, Logits] = field(default_factory=dict)
    greedy_tokens: tuple[int, ...] = ()
    problems: dict[str, str] = field(default_factory=dict)


def reference_predictions(session: Session, suite: Suite, precision: str) -> Predictions:
    """What the reference predicts, from one run of the text and one greedy continuation. Raises: RunError."""
    logits = _run(session, suite, suite.text[: suite.longest], precision)
    found = Predictions(logits={f"context {length}": logits[:length] for length in suite.contexts})
    found.logits[_PADDED] = np.concatenate([logits[:length] for length in suite.padded_lengths])
    if suite.num_steps:
        found.logits[_DECODE] = logits[suite.short - suite.num_steps : suite.short]
    _continue(session, suite, precision, found)
    add_greedy_leads(session, suite, precision, found)
    return found


def add_greedy_leads(session: Session, suite: Suite, precision: str, found: Predictions) -> None:
    """Adds the model's logits along its own continuation: the lead of each token it chose. Raises: RunError."""
    if found.greedy_tokens:
        whole = (*suite.prompt, *found.greedy_tokens[:-1])
        found.logits[_GREEDY] = _run(session, suite, whole, precision)[len(suite.prompt) - 1 :]


def candidate_predictions(session: Session, suite: Suite, precision: str) -> Predictions:
    """What a candidate predicts, each case really run; a case it refuses is a problem, not an error."""
    found = Predictions()

    def attempt(case: str, logits: Any) -> None:
        try:
            found.logits[case] = logits()
        except RunError as error:
            found.problems[case] = str(error)

    for length in suite.contexts:
        attempt(f"context {length}", lambda length=length: _run(session, suite, suite.text[:length], precision))
    attempt(_PADDED, lambda: _run_padded(session, suite, precision))
    if suite.num_steps:
        attempt(_DECODE, lambda: _run_steps(session, suite, precision))
    try:
        _continue(session, suite, precision, found)
    except RunError as error:
        found.problems[_GREEDY] = str(error)
    return found


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


def run_of_text(session: Session, suite: Suite, precision: str) -> Logits:
    """The logits ``[L, V]`` of the longest context. Raises: RunError."""
    return _run(session, suite, suite.text[: suite.longest], precision)


def figures(case: str, suite: Suite, reference: Predictions, candidate: Predictions) -> tuple[int, dict[str, Number]]:
    """(positions, metrics) of one case that both have."""
    if case == _GREEDY:
        return suite.num_greedy, _greedy_figures(reference, candidate)
    metrics = _logit_figures(reference.logits[case], candidate.logits[case])
    targets = suite.text[1 : suite.cases[case] + 1]
    if case.startswith("context") and len(targets) == suite.cases[case]:
        metrics.update(_perplexities(reference.logits[case], candidate.logits[case], targets))
    return len(reference.logits[case]), metrics


# --- running ----------------------------------------------------------------------------------------------------


def _run(session: Session, suite: Suite, tokens: tuple[int, ...], precision: str) -> Logits:
    ids = np.array([tokens], np.int64)
    positions = np.arange(len(tokens), dtype=np.int64)[None]
    row: Logits = _logits(session, suite, ids, np.ones_like(ids), positions, precision)[0]
    return row


def _run_padded(session: Session, suite: Suite, precision: str) -> Logits:
    lengths = suite.padded_lengths
    ids = np.zeros((len(lengths), suite.short), np.int64)
    mask = np.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, suite.short - length :] = suite.text[:length]
        mask[row, suite.short - length :] = 1
    logits = _logits(session, suite, ids, mask, np.maximum(mask.cumsum(axis=1) - 1, 0), precision)
    return np.concatenate([logits[row, suite.short - length :] for row, length in enumerate(lengths)])


def _run_steps(session: Session, suite: Suite, precision: str) -> Logits:
    """The last positions of the short context, one token a run after the others' cache."""
    start = suite.short - suite.num_steps
    ids = np.array([suite.text[: suite.short]], np.int64)
    positions = np.arange(suite.short, dtype=np.int64)[None]
    cache = _empty_cache(suite.config, 1, precision)
    found = []
    for begin, end in ((0, start), *((index, index + 1) for index in range(start, suite.short))):
        feeds = {
            "input_ids": ids[:, begin:end],
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": positions[:, begin:end],
        }
        outputs = session.run({**feeds, **cache})
        cache = cache_from(outputs)
        found.append(outputs["logits"][0, -1])
    return np.stack(found[1:])


def _continue(session: Session, suite: Suite, precision: str, found: Predictions) -> None:
    tokens = greedy(session, suite.config, suite.prompt, suite.num_greedy, cache_dtype=_cache_dtype(precision))
    found.greedy_tokens = tuple(tokens)


def _logits(
    session: Session,
    suite: Suite,
    ids: npt.NDArray[np.int64],
    mask: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
    precision: str,
) -> Logits:
    feeds = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    logits: Logits = session.run({**feeds, **_empty_cache(suite.config, len(ids), precision)})["logits"]
    return logits


def _empty_cache(config: AndreaConfig, batch: int, precision: str) -> Arrays:
    return zero_cache(config, batch=batch, past=0, dtype=_cache_dtype(precision))


def _cache_dtype(precision: str) -> np.dtype[Any]:
    return DTYPES[PRECISIONS[precision].cache_dtype].numpy


# --- figures ----------------------------------------------------------------------------------------------------


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
    prefix = next((index for index, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
    if prefix is None:
        length = len(reference.greedy_tokens)
        return {"greedy_prefix": length, "greedy_length": length, "greedy_flip_margin": 0.0}
    lead = reference.logits[_GREEDY][prefix]
    margin = float(lead[reference.greedy_tokens[prefix]]) - float(lead[candidate.greedy_tokens[prefix]])
    length = len(reference.greedy_tokens)
    return {"greedy_prefix": prefix, "greedy_length": length, "greedy_flip_margin": margin}


def _log_softmax(logits_NV: Logits) -> npt.NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        shifted = logits_NV.astype(np.float64) - logits_NV.max(axis=1, keepdims=True)
        result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def _at(rows: npt.NDArray[np.float64], columns: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    picked: npt.NDArray[np.float64] = rows[np.arange(len(rows)), columns]
    return picked
