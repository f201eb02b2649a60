"""How many tokens a draft proposes at once in a text: what they cost on this machine, and how many are accepted.

Source: Leviathan, Kalman, Matias, https://arxiv.org/abs/2211.17192, theorem 3.8 and corollary 3.9.
"""

from __future__ import annotations

import statistics
import sys
from collections import deque

MOST_PROPOSED = 15
_FIRST_PROPOSED = 2
"""As long as it is not known what they cost."""
_NUM_TIMES, _ENOUGH_TIMES = 9, 3
"""Of the last nine; three are enough. A plain step takes what the quicker ones took: machines do other things too."""
_NUM_JUDGED = 64
"""So many tokens of a text say how the next ones will do."""
_RUNS_BETWEEN_STEPS = 32
"""After so many runs one plain step says how long those take by now."""
_HOPELESS = 2.0
"""From this cost on no text is easy enough, nor a machine idle enough, to try again."""
_FIRST_PAUSE = 64
"""Plain steps before a draft that did not pay is tried again; each time twice as many."""


class Pace:
    """Measures one text, and decides before each run or step."""

    def __init__(self) -> None:
        self.off: str | None = None
        """Why the draft is switched off; None while it is in use."""
        self._plain_s: deque[float] = deque(maxlen=_NUM_TIMES)
        self._runs: deque[tuple[int, float]] = deque(maxlen=_NUM_TIMES)
        self._judged: deque[bool] = deque(maxlen=_NUM_JUDGED)
        self._num_runs, self._paused, self._next_pause, self._plain_is_new = 0, 0, _FIRST_PAUSE, False

    @property
    def plain_s(self) -> float | None:
        """Seconds of a plain step; None until it is known."""
        return sorted(self._plain_s)[len(self._plain_s) // 4] if len(self._plain_s) >= _ENOUGH_TIMES else None

    @property
    def cost(self) -> float | None:
        """What one more proposed token costs, with its verification, in plain steps; None until it is known."""
        if (plain_s := self.plain_s) is None or len(self._runs) < _ENOUGH_TIMES:
            return None
        return max(0.0, statistics.median((seconds / plain_s - 1) / number for number, seconds in self._runs))

    @property
    def accepted(self) -> float:
        """The share of proposed tokens that is accepted; it begins as if four of five had been, and is never 0 or 1."""
        return (sum(self._judged) + 4) / (len(self._judged) + 5)

    def num_to_propose(self) -> int:
        """The number of tokens that gives most in a second; 0: one plain step does, or has to be measured."""
        if self._paused > 0:
            self._paused -= 1
            return 0
        if self.plain_s is None or self._num_runs == _RUNS_BETWEEN_STEPS:
            return 0
        if (cost := self.cost) is None:
            return _FIRST_PROPOSED
        number = max(range(MOST_PROPOSED + 1), key=lambda number: speed_up(self.accepted, number, cost))
        if number > 0:
            self.off, self._next_pause, self._plain_is_new = None, _FIRST_PAUSE, False
        elif not self._plain_is_new:  # a machine that has become busy makes runs look dear
            self._plain_s.clear()
            self._plain_is_new = True
        else:
            self.off = f"{self.accepted:.0%} of its tokens are accepted, and one costs {cost:.0%} of a plain step"
            self._paused = self._next_pause if cost < _HOPELESS else sys.maxsize
            self._next_pause, self._plain_is_new = 2 * self._next_pause, False
            self._runs.clear()
        return number

    def took_step(self, seconds: float) -> None:
        """A plain step took so long."""
        self._plain_s.append(seconds)
        self._num_runs = 0

    def took_run(self, num_proposed: int, seconds: float) -> None:
        """Proposing so many tokens and verifying them in one run took so long."""
        self._runs.append((num_proposed, seconds))
        self._num_runs += 1

    def judged(self, accepted: bool) -> None:
        """One more proposed token was accepted, or not."""
        self._judged.append(accepted)


def speed_up(accepted: float, num_proposed: int, cost: float) -> float:
    """Tokens in the time of a plain step: each of ``num_proposed`` is accepted with that probability if all before are.

    ``cost``: of one of them, in plain steps.
    """
    num_expected = (1 - accepted ** (num_proposed + 1)) / (1 - accepted)
    return num_expected / (1 + num_proposed * cost)
