"""An engine's layers against torch, each within a budget derived from torch's own error, or named as not to be seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from andrea_export.backends.base import Session, zero_cache
from andrea_export.backends.torch_reference import TorchSession
from andrea_export.diff.cases import Case
from andrea_export.dtypes import DTYPES, dtype_from_numpy
from andrea_export.judge import budget_of, verdict_of
from andrea_export.metrics import ErrorSums
from andrea_export.precision import PRECISIONS
from andrea_export.specs import layer_names, present_names
from andrea_model.model import Andrea

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerComparison:
    """What became of every layer of the model in one engine."""

    compared: tuple[str, ...]
    out_of_budget: tuple[str, ...]
    not_seen: tuple[str, ...]
    """Fused away: the engine has no tensor of that name to read."""
    others: tuple[str, ...]
    """Tensors the engine showed that are no layer: the builder's own, or a layer under a name of its own."""
    worst_layer: str
    worst_share: float
    """The largest relative L2 error as a share of its budget, and the layer that has it."""


def compare_layers(engine: Session, model: Andrea, cases: Sequence[Case], precision: str) -> LayerComparison:
    """Runs the cases through the engine and through torch in fp64 and in the engine's precision, and compares."""
    names = tuple(layer_names(model.config))
    cache = DTYPES[PRECISIONS[precision].cache_dtype].numpy
    obtained = _run(engine, model, cases, cache)
    with TorchSession(model, precision="fp64", layers=names) as exact:
        truth = _run(exact, model, cases, np.dtype(np.float64))
    with TorchSession(model, precision=precision, layers=names) as same:
        theirs = _run(same, model, cases, cache)
    compared, out, not_seen, worst = [], [], [], (0.0, "")
    for name in names:
        if any(name not in run for run in obtained):
            not_seen.append(name)
            continue
        error, torch_error = ErrorSums(), ErrorSums()
        for reference, candidate, same_type in zip(truth, obtained, theirs, strict=True):
            if candidate[name].shape != reference[name].shape:
                raise ValueError(f"{name}: the engine has {candidate[name].shape}, torch {reference[name].shape}")
            error.add(reference[name], candidate[name])
            torch_error.add(reference[name], same_type[name])
        budget = budget_of(torch_error, dtype_from_numpy(obtained[0][name].dtype).name)
        compared.append(name)
        if verdict_of(error, budget) != "pass":
            out.append(name)
        if budget["relative_l2"] > 0:  # the mask is exact, or it is out of budget
            worst = max(worst, (error.relative_l2 / budget["relative_l2"], name))
    return LayerComparison(
        compared=tuple(compared),
        out_of_budget=tuple(out),
        not_seen=tuple(not_seen),
        others=tuple(name for name in obtained[0] if name not in names),
        worst_layer=worst[1],
        worst_share=worst[0],
    )


def _run(session: Session | TorchSession, model: Andrea, cases: Sequence[Case], cache: np.dtype[Any]) -> list[Arrays]:
    """Each case's layers; a case that follows another takes its keys and values from it."""
    found: dict[str, Arrays] = {}
    for case in cases:
        if case.past_of is None:
            past = zero_cache(model.config, batch=case.input_ids.shape[0], past=0, dtype=cache)
        else:
            before = found[case.past_of]
            past = {
                f"past_key_values.{index}.{part}": before[name].astype(cache)
                for index in range(model.config.n_layer)
                for part, name in zip(("key", "value"), present_names(index), strict=True)
            }
        found[case.name] = session.run({**case.feeds, **past})
    return list(found.values())
