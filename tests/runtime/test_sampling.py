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
    return Counter(sampler.pick(LOGITS, place) for place in range(number))


def test_greedy_takes_the_largest_and_of_equal_ones_the_lowest_id() -> None:
    assert Sampler(Sampling()).pick(LOGITS, 0) == 1
    assert Sampler(Sampling()).pick(np.array([1, 3, 3], np.float32), 0) == 1


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
        Sampler(sampling).pick(np.array([0.0, bad, 1.0], np.float32), 0)


def test_the_noise_of_a_place_is_its_own() -> None:
    """Whatever was drawn before, or is drawn twice: a draft looks ahead, and goes back."""
    sampler = Sampler(Sampling(temperature=1.0, seed=5))
    in_order = [sampler.pick(LOGITS, place) for place in range(20)]
    assert [sampler.pick(LOGITS, place) for place in reversed(range(20))] == in_order[::-1]
    assert len(set(in_order)) == 4
    assert in_order != [Sampler(Sampling(temperature=1.0, seed=6)).pick(LOGITS, place) for place in range(20)]


def test_draws_of_nearly_one_distribution_are_nearly_always_the_same() -> None:
    """At least (1 - D) / (1 + D) of them, D the total variation distance: Daliri et al., theorem 2."""
    other = LOGITS + np.array([0.2, -0.1, 0.1, 0.0], np.float32)
    share, other_share = (np.exp(one) / np.exp(one).sum() for one in (LOGITS, other))
    distance = float(np.abs(share - other_share).sum()) / 2
    sampler = Sampler(Sampling(temperature=1.0))
    same = [sampler.pick(LOGITS, place) == sampler.pick(other, place) for place in range(4000)]
    assert np.mean(same) > (1 - distance) / (1 + distance)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.7),
        Sampling(temperature=1.0, top_k=3),
        Sampling(temperature=1.0, top_p=0.7),
        Sampling(temperature=2.0, top_k=8, top_p=0.8),
        Sampling(temperature=5e-324, top_k=2),
    ],
)
def test_what_is_sure_holds_for_all_logits_that_near(sampling: Sampling) -> None:
    """Also for those that help all others against it, and for those that move a cut-off."""
    random, sampler, off_by, num_sure = np.random.default_rng(0), Sampler(sampling), 0.02, 0
    for place in range(400):
        logits_V = random.standard_normal(12).astype(np.float32)
        chosen = sampler.surely(logits_V, place, off_by)
        if chosen is None:
            continue
        num_sure += 1
        moves = [random.choice([-off_by, off_by], 12) for _ in range(20)] + [np.full(12, off_by)]
        moves[-1][chosen] = -off_by
        for move in moves:
            assert sampler.pick((logits_V + 0.999 * move).astype(np.float32), place) == chosen
    assert num_sure > 200 or sampling.temperature == 5e-324


def test_a_tie_is_not_sure() -> None:
    for sampling in (Sampling(), Sampling(temperature=5e-324)):
        assert Sampler(sampling).surely(np.array([1, 3, 3 - 1e-6], np.float32), 0, 1e-6) is None
        assert Sampler(sampling).surely(np.array([1, 3, 2], np.float32), 0, 1e-6) in (1, None)
    assert Sampler(Sampling()).surely(np.array([1, 3, 2], np.float32), 0, 1e-6) == 1
    with pytest.raises(RunError, match="NaN"):
        Sampler(Sampling()).surely(np.array([1, np.nan], np.float32), 0, 1e-6)
