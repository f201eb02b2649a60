"""When a draft pays: the formula against enumeration, and what is decided from times and acceptance."""

from __future__ import annotations

import itertools

import pytest

from andrea_export.runtime.pace import MOST_PROPOSED, Pace, speed_up


def measured(*, cost: float, accepted: bool, num_runs: int = 3, number: int = 2) -> Pace:
    """A pace that has seen plain steps of one second, and runs at this cost whose tokens were all accepted, or none."""
    pace = Pace()
    for _ in range(3):
        assert pace.num_to_propose() == 0
        pace.took_step(1.0)
    for _ in range(num_runs):
        pace.took_run(number, 1 + number * cost)
        for _ in range(number):
            pace.judged(accepted)
    return pace


@pytest.mark.parametrize("number", [0, 1, 2, 5])
@pytest.mark.parametrize("accepted", [0.1, 0.5, 0.9])
def test_speed_up_is_the_expected_number_of_tokens_a_second(number: int, accepted: float) -> None:
    """Every way in which ``number`` tokens may be accepted or not, with its probability."""
    expected = 0.0
    for ways in itertools.product((True, False), repeat=number):
        probability = 1.0
        for is_accepted in ways:
            probability *= accepted if is_accepted else 1 - accepted
        expected += probability * (1 + len(list(itertools.takewhile(bool, ways))))
    assert speed_up(accepted, number, 0.25) == pytest.approx(expected / (1 + 0.25 * number))


def test_plain_steps_are_measured_first_then_runs_of_few() -> None:
    pace = measured(cost=0.3, accepted=True, num_runs=0)
    assert (pace.plain_s, pace.cost, pace.num_to_propose()) == (1.0, None, 2)


def test_the_more_is_accepted_the_more_is_proposed() -> None:
    always, sometimes = (measured(cost=0.3, accepted=True, num_runs=runs) for runs in (30, 3))
    for judged in (True, True, False) * 20:
        sometimes.judged(judged)
    assert always.num_to_propose() > sometimes.num_to_propose() > 0
    assert measured(cost=0.01, accepted=True, num_runs=30).num_to_propose() == MOST_PROPOSED


@pytest.mark.parametrize(("cost", "accepted"), [(1.05, True), (0.3, False)])
def test_what_does_not_pay_is_switched_off_and_tried_again(cost: float, accepted: bool) -> None:
    """It pays where the accepted share is larger than the cost, and nowhere else: corollary 3.9."""
    pace = measured(cost=cost, accepted=accepted, num_runs=6)
    pauses = []
    for _ in range(3):
        paused = 0
        while pace.num_to_propose() == 0:
            pace.took_step(1.0)
            paused += 1
        pauses.append(paused)
        assert pace.off is not None and "of its tokens are accepted, and one costs" in pace.off
        for _ in range(3):
            pace.took_run(2, 1 + 2 * cost)
            pace.judged(accepted)
    # Three steps that are measured anew before it is switched off, the one that this decides on, and the pause.
    assert pauses == [3 + 1 + 64, 3 + 1 + 128, 3 + 1 + 256]
    for _ in range(64):
        pace.judged(True)
    for _ in range(9):
        pace.took_run(2, 1.2)
    pace._paused = 0
    assert pace.num_to_propose() > 0 and pace.off is None


def test_a_machine_that_has_become_busy_does_not_switch_it_off() -> None:
    pace = measured(cost=0.3, accepted=True, num_runs=9)
    for _ in range(9):
        pace.took_run(4, 3 * (1 + 4 * 0.3))
    assert pace.num_to_propose() == 0 and pace.off is None, "plain steps are measured anew"
    for _ in range(3):
        pace.took_step(3.0)
    assert pace.num_to_propose() > 0 and pace.off is None


def test_a_hopeless_draft_is_not_tried_again() -> None:
    pace = measured(cost=2.5, accepted=True)
    for _ in range(1000):
        assert pace.num_to_propose() == 0
        pace.took_step(1.0)
    assert pace.off == "91% of its tokens are accepted, and one costs 250% of a plain step"


def test_a_plain_step_is_measured_now_and_then() -> None:
    pace = measured(cost=0.3, accepted=True)
    proposed = []
    for _ in range(99):
        proposed.append(pace.num_to_propose())
        if proposed[-1]:
            pace.took_run(proposed[-1], 1 + 0.3 * proposed[-1])
        else:
            pace.took_step(1.0)
    assert proposed.count(0) == 3


def test_one_slow_run_changes_nothing() -> None:
    pace = measured(cost=0.3, accepted=True, num_runs=8)
    before = pace.num_to_propose()
    pace.took_run(2, 1000.0)
    pace.took_step(1000.0)
    assert pace.num_to_propose() == before
