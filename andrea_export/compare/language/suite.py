"""The cases of the language model that a text allows, and what one model predicts on them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from andrea_model.config import AndreaConfig

Logits = npt.NDArray[Any]

CONTEXTS = (1, 2, 128, 1023, 1024)
NUM_STEPS = 16  # of the step-by-step decode
NUM_GREEDY = 32
PADDED, DECODE, GREEDY = "left-padded batch", "decode with cache", "greedy"


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
        decode = {DECODE: self.short} if self.num_steps else {}
        contexts = {f"context {length}": length for length in self.contexts}
        return {**contexts, PADDED: self.short, **decode, GREEDY: len(self.prompt) + self.num_greedy}


@dataclass(slots=True, kw_only=True)
class Predictions:
    """What one model predicts: case → logits ``[N, V]`` of the case's positions, and its greedy continuation.

    A case that could not be run is in ``problems``, with the reason.
    """

    logits: dict[str, Logits] = field(default_factory=dict)
    greedy_tokens: tuple[int, ...] = ()
    problems: dict[str, str] = field(default_factory=dict)
