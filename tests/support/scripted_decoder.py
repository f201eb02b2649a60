"""A decoder whose logits are a function of the text, on a clock that moves only when it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from andrea_export.runtime.decoder import Decoder, LogitsBV, RewindableGeneration
from andrea_export.runtime.sampling import Logits

Script = Callable[[tuple[int, ...]], Logits]


@dataclass(slots=True)
class Clock:
    """Seconds that somebody has to spend."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class ScriptedDecoder(Decoder):
    """``run_s``: what a run takes, and each token of it."""

    def __init__(self, script: Script, clock: Clock | None = None, *, run_s: float = 1.0, token_s: float = 0.0) -> None:
        super().__init__("scripted")
        self.script, self.clock, self.run_s, self.token_s = script, clock or Clock(), run_s, token_s
        self.runs: list[int] = []

    def _generation(self, num_rows: int, capacity: int) -> ScriptedGeneration:
        assert num_rows == 1
        return ScriptedGeneration(self, capacity)

    def _release(self) -> None:
        pass


class ScriptedGeneration(RewindableGeneration):
    """One text on it. Fails if it comes to more tokens than it said."""

    def __init__(self, decoder: ScriptedDecoder, capacity: int) -> None:
        self._decoder, self._capacity = decoder, capacity
        self._tokens: list[int] = []
        self.num_filled = [0]
        self.is_closed = False

    def fill(self, prompts: Sequence[Sequence[int]]) -> None:
        (prompt,) = prompts
        self.logits_BV = self.append(prompt)[-1:]

    def step(self, tokens: Sequence[int]) -> LogitsBV:
        self.logits_BV = self.append(tokens)
        return self.logits_BV

    def append(self, tokens: Sequence[int]) -> LogitsBV:
        assert not self.is_closed
        decoder, rows = self._decoder, []
        self._tokens = self._tokens[: self.num_filled[0]]
        for token in tokens:
            self._tokens.append(token)
            rows.append(decoder.script(tuple(self._tokens)))
        self.num_filled[0] = len(self._tokens)
        assert len(self._tokens) <= self._capacity
        decoder.runs.append(len(tokens))
        decoder.clock.now += decoder.run_s + decoder.token_s * len(tokens)
        return np.array(rows, np.float32)

    def rewind(self, num_filled: int) -> None:
        assert num_filled <= self.num_filled[0]
        self.num_filled[0] = num_filled

    def close(self) -> None:
        self.is_closed = True
