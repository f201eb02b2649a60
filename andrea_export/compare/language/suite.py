"""The cases of the language model that a text allows, and running them: what one model predicts.

Attention is causal, so that the reference's first L predictions are those of a run of L tokens: one long run of it
serves every context. The candidate is run at every context, in a left-padded batch, and step by step with its cache.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea_export.compare.inputs import Arrays
from andrea_export.core.dtypes import DTYPES
from andrea_export.core.errors import RunError
from andrea_export.core.precision import PRECISIONS
from andrea_export.sessions.base import Session, cache_from, greedy, step_feeds, zero_cache
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


def reference_predictions(session: Session, suite: Suite, precision: str) -> Predictions:
    """What the reference predicts, from one run of the text and one greedy continuation. Raises: RunError."""
    logits = _run(session, suite, suite.text[: suite.longest], precision)
    found = Predictions(logits={f"context {length}": logits[:length] for length in suite.contexts})
    found.logits[PADDED] = np.concatenate([logits[:length] for length in suite.padded_lengths])
    if suite.num_steps:
        found.logits[DECODE] = logits[suite.short - suite.num_steps : suite.short]
    _continue(session, suite, precision, found)
    add_greedy_leads(session, suite, precision, found)
    return found


def add_greedy_leads(session: Session, suite: Suite, precision: str, found: Predictions) -> None:
    """Adds the model's logits along its own continuation: the lead of each token it chose. Raises: RunError."""
    if found.greedy_tokens:
        whole = (*suite.prompt, *found.greedy_tokens[:-1])
        found.logits[GREEDY] = _run(session, suite, whole, precision)[len(suite.prompt) - 1 :]


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
    attempt(PADDED, lambda: _run_padded(session, suite, precision))
    if suite.num_steps:
        attempt(DECODE, lambda: _run_steps(session, suite, precision))
    try:
        _continue(session, suite, precision, found)
    except RunError as error:
        found.problems[GREEDY] = str(error)
    return found


def run_of_text(session: Session, suite: Suite, precision: str) -> Logits:
    """The logits ``[L, V]`` of the longest context. Raises: RunError."""
    return _run(session, suite, suite.text[: suite.longest], precision)


def _run(session: Session, suite: Suite, tokens: tuple[int, ...], precision: str) -> Logits:
    row: Logits = session.run(step_feeds(tokens, 0, _empty_cache(suite.config, 1, precision)))["logits"][0]
    return row


def _run_padded(session: Session, suite: Suite, precision: str) -> Logits:
    lengths = suite.padded_lengths
    ids = np.zeros((len(lengths), suite.short), np.int64)
    mask = np.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, suite.short - length :] = suite.text[:length]
        mask[row, suite.short - length :] = 1
    positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
    feeds = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    logits = session.run({**feeds, **_empty_cache(suite.config, len(ids), precision)})["logits"]
    return np.concatenate([logits[row, suite.short - length :] for row, length in enumerate(lengths)])


def _run_steps(session: Session, suite: Suite, precision: str) -> Logits:
    """The last positions of the short context, one token a run after the others' cache."""
    start = suite.short - suite.num_steps
    cache = _empty_cache(suite.config, 1, precision)
    found = []
    for begin, end in ((0, start), *((index, index + 1) for index in range(start, suite.short))):
        outputs = session.run(step_feeds(suite.text[begin:end], begin, cache))
        cache = cache_from(outputs)
        found.append(outputs["logits"][0, -1])
    return np.stack(found[1:])


def _continue(session: Session, suite: Suite, precision: str, found: Predictions) -> None:
    tokens = greedy(session, suite.config, suite.prompt, suite.num_greedy, cache_dtype=_cache_dtype(precision))
    found.greedy_tokens = tuple(tokens)


def _empty_cache(config: AndreaConfig, batch: int, precision: str) -> Arrays:
    return zero_cache(config, batch=batch, past=0, dtype=_cache_dtype(precision))


def _cache_dtype(precision: str) -> np.dtype[Any]:
    return DTYPES[PRECISIONS[precision].cache_dtype].numpy
