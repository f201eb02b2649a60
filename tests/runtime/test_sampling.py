"""Drawing a token: the distribution it is drawn from, its cut-offs, and logits that are none."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from andrea_export.core.errors import RunError
from andrea_export.runtime.sampling import Sampler, Sampling

LOGITS = np.log(np.array([0.1, 0.5, 0.25, 0.15], np.float32))


def drawn(sampling: Sampling, number: int = 4000) -> Counter[int]:
    sampler = Sampler(sampling)
    return Counter(sampler.pick(LOGITS) for _ in range(number))


def test_greedy_takes_the_largest_and_of_equal_ones_the_lowest_id() -> None:
    assert Sampler(Sampling()).pick(LOGITS) == 1
    assert Sampler(Sampling()).pick(np.array([1, 3, 3], np.float32)) == 1


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature: float) -> None:
    wanted = np.exp(LOGITS / temperature)
    wanted /= wanted.sum()
    counts = drawn(Sampling(temperature=temperature))
    found = np.array([counts[token] / 4000 for token in range(4)])
    # Five standard deviations of a share drawn 4,000 times; the seed is fixed, so it cannot fail by chance.
    assert (np.abs(found - wanted) < 5 * np.sqrt(wanted * (1 - wanted) / 4000)).all()


@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [
        (Sampling(temperature=1.0, top_k=1), {1}),
        (Sampling(temperature=1.0, top_k=2), {1, 2}),
        (Sampling(temperature=1.0, top_k=99), {0, 1, 2, 3}),
        (Sampling(temperature=1.0, top_p=0.4), {1}),
        (Sampling(temperature=1.0, top_p=0.6), {1, 2}),
        (Sampling(temperature=1.0, top_p=1.0), {0, 1, 2, 3}),
        (Sampling(temperature=1.0, top_k=3, top_p=0.8), {1, 2}),
        (Sampling(temperature=1e-6), {1}),
    ],
)
def test_cut_offs(sampling: Sampling, allowed: set[int]) -> None:
    assert set(drawn(sampling)) == allowed


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0)])
def test_logits_that_are_not_finite_are_an_error(bad: float, sampling: Sampling) -> None:
    with pytest.raises(RunError, match="1 of 3 logits are NaN or Inf"):
        Sampler(sampling).pick(np.array([0.0, bad, 1.0], np.float32))
