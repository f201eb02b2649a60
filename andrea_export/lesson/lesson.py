"""The lesson: one token through one block, every step with its shape and statistics, backends side by side.

Owns the lesson as data and the comparison in it; runs any Session that has layers, renders nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from andrea_export.core.dtypes import DTYPES
from andrea_export.core.errors import RunError, UsageError
from andrea_export.lesson.formulas import Array, Formula, Layers, attention_weights_name, formulas
from andrea_export.sessions.base import Session, step_feeds, zero_cache
from andrea_export.tokens.tokenizer import outside_vocabulary
from andrea_model.config import AndreaConfig

AttentionWeightsFrom = Literal["node output", "computed from q and k"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Of one step's values for one token, computed in fp64; ``std`` is the population's."""

    mean: float
    std: float
    min: float
    max: float
    l2: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One step on one backend. ``max_abs_difference`` is against the lesson's first backend; None for that one."""

    statistics: Statistics
    max_abs_difference: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LessonStep:
    """One step of the block: what it computes, the shape of its result for one token, and what each backend got.

    A backend that has no such tensor (an engine fused it away) has no observation.
    """

    name: str
    formula: str
    layer: str
    shape: tuple[int, ...]
    observations: Mapping[str, Observation]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One token through one block."""

    config: AndreaConfig
    weights: str
    block: int
    tokens: tuple[int, ...]
    position: int
    backends: tuple[str, ...]
    runs_in: Mapping[str, str]
    """Backend → the precision it ran in, and the version of what ran it."""
    attention_weights_from: Mapping[str, AttentionWeightsFrom]
    steps: tuple[LessonStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendLayers:
    """What one backend's run gave: layer name → array, as it came out of the session."""

    name: str
    layers: Layers
    runs_in: str = "fp32"
    """The precision it ran in, and the version of what ran it."""


def checked_position(config: AndreaConfig, *, tokens: Sequence[int], position: int | None, block: int) -> int:
    """The token's position: the last one's where None is given. Raises UsageError naming every problem at once."""
    problems = [] if tokens else ["no tokens given, expected at least one"]
    problems += outside_vocabulary(config, tokens)
    if len(tokens) > config.n_ctx:
        problems.append(f"{len(tokens)} tokens are more than the model's {config.n_ctx} positions")
    if position is not None and tokens and not 0 <= position < len(tokens):
        problems.append(f"position {position} does not exist, expected {_up_to(len(tokens))}")
    if not 0 <= block < config.n_layer:
        problems.append(f"block {block} does not exist, expected {_up_to(config.n_layer)}")
    if problems:
        raise UsageError("; ".join(problems), hint="see andrea-export trace --help")
    return len(tokens) - 1 if position is None else position


def _up_to(count: int) -> str:
    return f"0 to {count - 1}" if count > 1 else "0, the only one"


def run_layers(
    session: Session,
    config: AndreaConfig,
    tokens: Sequence[int],
    *,
    name: str | None = None,
    runs_in: str = "fp32",
    cache_dtype: str = "fp32",
) -> BackendLayers:
    """One forward pass over the tokens, with an empty cache of that type (a key of ``dtypes.DTYPES``).

    ``name``: the session's own where left out. Raises: RunError.
    """
    cache = zero_cache(config, batch=1, past=0, dtype=DTYPES[cache_dtype].numpy)
    layers = session.run(step_feeds(tokens, 0, cache))
    return BackendLayers(name=name or session.name, layers=layers, runs_in=runs_in)


def lesson_from_layers(
    runs: Sequence[BackendLayers],
    config: AndreaConfig,
    *,
    weights: str,
    tokens: Sequence[int],
    position: int,
    block: int,
) -> Lesson:
    """The lesson on one token, from what each backend's run gave; the first is what the others are compared with.

    Raises: RunError where no backend shows a single step.
    """
    seen = (_step(runs, formula) for formula in formulas(config, position, block))
    steps = tuple(step for step in seen if step is not None)
    if not steps:
        raise RunError(f"none of {', '.join(run.name for run in runs)} shows a step of block {block}")
    node = attention_weights_name(block)
    return Lesson(
        config=config,
        weights=weights,
        block=block,
        tokens=tuple(tokens),
        position=position,
        backends=tuple(run.name for run in runs),
        runs_in={run.name: run.runs_in for run in runs},
        attention_weights_from={
            run.name: "node output" if node in run.layers else "computed from q and k"
            for run in runs
            if node in run.layers or f"blocks.{block}.attn.qkv" in run.layers
        },
        steps=steps,
    )


def _step(runs: Sequence[BackendLayers], formula: Formula) -> LessonStep | None:
    """What the backends got by one formula; None where no backend shows it."""
    values = {run.name: found for run in runs if (found := formula.result(run.layers)) is not None}
    if not values:
        return None
    first = runs[0].name
    reference = values[first].astype(np.float64) if first in values else None
    return LessonStep(
        name=formula.name,
        formula=formula.formula,
        layer=formula.layer,
        shape=tuple(next(iter(values.values())).shape),
        observations={
            backend: Observation(
                statistics=_statistics(value),
                max_abs_difference=None
                if reference is None or backend == first
                else float(np.abs(value.astype(np.float64) - reference).max()),
            )
            for backend, value in values.items()
        },
    )


def _statistics(value: Array) -> Statistics:
    exact = value.astype(np.float64)
    return Statistics(
        mean=float(exact.mean()),
        std=float(exact.std()),
        min=float(exact.min()),
        max=float(exact.max()),
        l2=float(np.linalg.norm(exact)),
    )
