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
    """Chooses one row's tokens, step by step. Rows of a batch have one each, so a row's draws are its own."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        # numpy.random is 2 MB and 8 ms that greedy decoding does not need.
        greedy = sampling.temperature is None
        self._random = None if greedy else np.random.Generator(np.random.PCG64(sampling.seed))

    def pick(self, logits_V: Logits) -> int:
        """The next token. Raises: RunError for logits that are not finite."""
        best = int(logits_V.argmax())
        # argmax stops at a NaN, so the largest value tells of NaN and Inf, and the smallest of −Inf.
        if not (math.isfinite(logits_V[best]) and math.isfinite(logits_V.min())):
            bad = int(np.count_nonzero(~np.isfinite(logits_V)))
            raise RunError(
                f"{bad} of {logits_V.size} logits are NaN or Inf", hint="run `andrea-export validate` on the bundle"
            )
        temperature = self._sampling.temperature
        if temperature is None or self._random is None:
            return best
        # fp64, and sorted with ties in id order: the same draw on every machine that gives the same logits.
        order = np.argsort(-logits_V, kind="stable")
        if self._sampling.top_k is not None:
            order = order[: self._sampling.top_k]
        with np.errstate(over="ignore"):  # next to no temperature: −Inf, whose share is 0
            scaled = (logits_V[order].astype(np.float64) - float(logits_V[best])) / temperature
        share = np.exp(scaled)
        cumulated = np.cumsum(share / share.sum())
        if self._sampling.top_p is not None:
            num_kept = int(np.searchsorted(cumulated, self._sampling.top_p)) + 1
            cumulated = cumulated[:num_kept]
        draw = self._random.random() * cumulated[-1]
        return int(order[min(int(np.searchsorted(cumulated, draw, side="right")), len(cumulated) - 1)])

    def ends(self, token: int) -> bool:
        """Whether this token ends the text."""
        return token in self._sampling.stop
