"""From logits to a token: greedy, or drawn with temperature, top-k and top-p from a seeded generator."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from andrea_export.core.errors import RunError, UsageError
from andrea_export.core.numbers import real_number, whole_number

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is chosen, and which tokens end a text. The default is greedy."""

    temperature: float | None = None
    """Above 0; the logits are divided by it. None is greedy: the largest logit, of equal ones the lowest id."""
    top_k: int | None = None
    """Draw from the k likeliest tokens only."""
    top_p: float | None = None
    """Draw from the fewest likeliest tokens that together have at least this probability."""
    seed: int = 0
    """The same seed, prompt and settings give the same tokens."""
    stop: tuple[int, ...] = ()
    """Tokens that end the text; the one that does is not part of it."""


def checked_sampling(sampling: Sampling, vocab_size: int) -> Sampling:
    """The settings as plain numbers.

    Raises: UsageError for the first that is not a number, else for those that cannot be drawn from, all at once.
    """
    if not isinstance(sampling, Sampling):
        raise UsageError(f"sampling is {sampling!r}, expected andrea_export.runtime.Sampling(...)")
    sampling = _plain(sampling)
    problems = []
    temperature, top_k, top_p = sampling.temperature, sampling.top_k, sampling.top_p
    if temperature is not None and not (math.isfinite(temperature) and temperature > 0):
        problems.append(f"temperature is {temperature:g}, expected a number above 0 (leave it out to be greedy)")
    if top_k is not None and top_k < 1:
        problems.append(f"top-k is {top_k}, expected at least 1")
    if top_p is not None and not 0 < top_p <= 1:
        problems.append(f"top-p is {top_p:g}, expected more than 0 and at most 1")
    if temperature is None and (top_k is not None or top_p is not None):
        problems.append("top-k and top-p need a temperature: without one the likeliest token is taken")
    if sampling.seed < 0:
        problems.append(f"seed is {sampling.seed}, expected at least 0")
    outside = [token for token in sampling.stop if not 0 <= token < vocab_size]
    if outside:
        problems.append(f"stop token {outside[0]} is outside the vocabulary, expected 0 to {vocab_size - 1}")
    if problems:
        raise UsageError("; ".join(problems), hint="without a temperature the likeliest token is taken")
    return sampling


def _plain(sampling: Sampling) -> Sampling:
    """The same settings in Python's own numbers. Raises: UsageError for the first that is not a number."""
    if isinstance(sampling.stop, str | bytes | Mapping) or not isinstance(sampling.stop, Collection):
        raise UsageError(f"stop is {sampling.stop!r}, expected a tuple of token ids")
    return Sampling(
        temperature=None if sampling.temperature is None else real_number("temperature", sampling.temperature),
        top_k=None if sampling.top_k is None else whole_number("top-k", sampling.top_k),
        top_p=None if sampling.top_p is None else real_number("top-p", sampling.top_p),
        seed=whole_number("seed", sampling.seed),
        stop=tuple(whole_number("a stop token", token) for token in sampling.stop),
    )


class Sampler:
    """Chooses one row's tokens. Rows of a batch have one each, so a row's draws are its own.

    A draw is the largest of logit / temperature + Gumbel noise, which has the distribution of the softmax. The noise of
    a place in the text follows from the seed and the place alone, and not from what was drawn before: two models that
    say nearly the same of a place draw nearly always the same token there, which is what a draft needs.
    Source: Daliri, Musco, Suresh, https://arxiv.org/abs/2408.07978.
    """

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling

    def pick(self, logits_V: Logits, place: int) -> int:
        """The new token number ``place`` of the text, from 0. Raises: RunError for logits that are not finite."""
        best, temperature = _best(logits_V), self._sampling.temperature
        if temperature is None:
            return best
        scaled_V = _scaled(logits_V, best, temperature)
        score_V = scaled_V + self._noise(len(scaled_V), place)
        if self._sampling.top_k is None and self._sampling.top_p is None:
            return int(score_V.argmax())
        # fp64, and sorted with ties in id order: the same draw on every machine that gives the same logits.
        order = np.argsort(-logits_V, kind="stable")
        kept = order[: self._num_kept(scaled_V[order])]
        return int(kept[score_V[kept].argmax()])

    def surely(self, logits_V: Logits, place: int, off_by: float) -> int | None:
        """What ``pick`` gives for all logits none of which is further than ``off_by`` from these; None if not one.

        Sorted logits and the shares' logarithms move by no more than the logits do, and the shares' sum with them.
        Raises: as ``pick``.
        """
        best, temperature = _best(logits_V), self._sampling.temperature
        if temperature is None:
            return best if np.count_nonzero(logits_V >= float(logits_V[best]) - 2 * off_by) == 1 else None
        apart = 2 * off_by / temperature
        scaled_V = _scaled(logits_V, best, temperature)
        score_V = scaled_V + self._noise(len(scaled_V), place)
        never_kept_V = np.zeros(len(scaled_V), bool)
        always_kept_V = ~never_kept_V
        if self._sampling.top_k is not None or self._sampling.top_p is not None:
            falling = -np.sort(-scaled_V)
            fewest, most = (self._num_kept(falling, by) for by in (-apart, apart))
            with np.errstate(invalid="ignore"):  # next to no temperature: −Inf + Inf, which nothing is larger than
                never_kept_V = scaled_V < falling[most - 1] - apart
                if fewest < len(falling):
                    always_kept_V = scaled_V > falling[fewest] + apart
        score_V[never_kept_V] = -np.inf
        chosen = int(score_V.argmax())
        alone = np.count_nonzero(score_V >= score_V[chosen] - apart) == 1
        return chosen if alone and always_kept_V[chosen] else None

    def ends(self, token: int) -> bool:
        """Whether this token ends the text."""
        return token in self._sampling.stop

    def _noise(self, number: int, place: int) -> npt.NDArray[np.float64]:
        seed = np.random.SeedSequence(self._sampling.seed, spawn_key=(place,))
        random = np.random.Generator(np.random.PCG64(seed))
        noise: npt.NDArray[np.float64] = -np.log(random.standard_exponential(number))
        return noise

    def _num_kept(self, falling: npt.NDArray[np.float64], moved_by: float = 0.0) -> int:
        """How many of these, the largest first, may be drawn; were every share up to e^``moved_by`` smaller."""
        number = len(falling) if self._sampling.top_k is None else min(self._sampling.top_k, len(falling))
        if self._sampling.top_p is None:
            return number
        share = np.exp(falling[:number])
        with np.errstate(over="ignore"):
            wanted = self._sampling.top_p * np.exp(moved_by)
        return min(number, int(np.searchsorted(np.cumsum(share / share.sum()), wanted)) + 1)


def _best(logits_V: Logits) -> int:
    """The largest one's id, of equal ones the lowest. Raises: RunError for logits that are not finite."""
    best = int(logits_V.argmax())
    # argmax stops at a NaN, so the largest value tells of NaN and Inf, and the smallest of −Inf.
    if not (math.isfinite(logits_V[best]) and math.isfinite(logits_V.min())):
        bad = int(np.count_nonzero(~np.isfinite(logits_V)))
        raise RunError(
            f"{bad} of {logits_V.size} logits are NaN or Inf", hint="run `andrea-export validate` on the bundle"
        )
    return best


def _scaled(logits_V: Logits, best: int, temperature: float) -> npt.NDArray[np.float64]:
    """The logits less the largest, in units of the temperature."""
    with np.errstate(over="ignore"):  # next to no temperature: −Inf, whose share is 0
        return (logits_V.astype(np.float64) - float(logits_V[best])) / temperature
