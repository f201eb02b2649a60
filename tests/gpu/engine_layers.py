"""An engine's layers against torch: within a budget derived from torch's own error, or named with the reason."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from debug_tensors import REPORT
from numpy.typing import NDArray

from andrea_export.compare.inputs import Case
from andrea_export.compare.runs import run_case
from andrea_export.core.dtypes import DTYPES, dtype_from_numpy
from andrea_export.core.names import layer_names, present_names
from andrea_export.core.precision import PRECISIONS, EnginePrecision
from andrea_export.judge.budget import budget_of, failures_of
from andrea_export.report.metrics import ErrorSums
from andrea_export.sessions.base import Session
from andrea_export.sessions.torch_reference import TorchSession
from andrea_model.config import AndreaConfig
from andrea_model.model import Andrea

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """torch's layers, case by case: in fp64, and in the engine's precision, whose error the budget comes from."""

    config: AndreaConfig
    cases: tuple[Case, ...]
    cache: np.dtype[Any]
    exact: tuple[Arrays, ...]
    same_type: tuple[Arrays, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerComparison:
    """What became of every layer of the model in one engine: each is in one of the first four lists."""

    compared: tuple[str, ...]
    fused_away: tuple[str, ...]
    """The engine shows no tensor of that name."""
    unread: tuple[str, ...]
    """``layer: reason``: the engine has it, and it could not be copied, or not in each case."""
    other_shape: tuple[str, ...]
    """``layer: its shape, torch's``."""
    out_of_budget: tuple[str, ...]
    """Those of ``compared`` that are."""
    others: tuple[str, ...]
    """Tensors the engine showed that are no layer: the builder's own, or a layer under a name of its own."""
    num_inner: int
    """How many of ``compared`` are no outputs of the graph, which can be read without debug tensors."""
    silent_blocks: tuple[int, ...]
    """Blocks of which no inner layer was compared."""
    num_engine_layers: int | None
    """Of the engine, after fusion; None if it does not say."""
    worst_layer: str
    worst_share: float
    """The largest relative L2 error as a share of its budget, and the layer that has it."""


def torch_references(model: Andrea, cases: Sequence[Case], precision: EnginePrecision) -> References:
    """Runs the cases through torch in fp64 and in the precision."""
    names = tuple(layer_names(model.config))
    cache = DTYPES[PRECISIONS[precision].cache_dtype].numpy
    with TorchSession(model, precision="fp64", layers=names) as exact:
        truth = _run(exact, model.config, cases, np.dtype(np.float64))
    with TorchSession(model, precision=precision, layers=names) as same:
        theirs = _run(same, model.config, cases, cache)
    return References(config=model.config, cases=tuple(cases), cache=cache, exact=tuple(truth), same_type=tuple(theirs))


def compare_layers(engine: Session, references: References) -> LayerComparison:
    """Runs the cases through the engine and compares every layer it shows."""
    names = tuple(layer_names(references.config))
    obtained = _run(engine, references.config, references.cases, references.cache)
    reports = [_report(run) for run in obtained]
    problems = {name: reason for report in reports for name, reason in report.get("problems", {}).items()}
    compared, fused_away, unread, other_shape, out, worst = [], [], [], [], [], (0.0, "")
    for name in names:
        shown = sum(name in run for run in obtained)
        if name in problems:
            unread.append(f"{name}: {problems[name]}")
            continue
        if shown < len(obtained):
            if shown:
                unread.append(f"{name}: shown in {shown} of {len(obtained)} runs")
            else:
                fused_away.append(name)
            continue
        shapes = [
            f"{run[name].shape}, torch {truth[name].shape}"
            for run, truth in zip(obtained, references.exact, strict=True)
            if run[name].shape != truth[name].shape
        ]
        if shapes:
            other_shape.append(f"{name}: {shapes[0]}")
            continue
        error, torch_error = ErrorSums(), ErrorSums()
        for truth, run, same in zip(references.exact, obtained, references.same_type, strict=True):
            error.add(truth[name], run[name])
            torch_error.add(truth[name], same[name])
        budget = budget_of(torch_error, dtype_from_numpy(obtained[0][name].dtype).name)
        compared.append(name)
        if failures_of(error.as_metrics(), budget):
            out.append(name)
        if budget["relative_l2"] > 0:  # the mask is exact, or it is out of budget
            worst = max(worst, (error.relative_l2 / budget["relative_l2"], name))
    num_blocks = references.config.n_layer
    outputs = {"logits", *(name for index in range(num_blocks) for name in present_names(index))}
    inner = [name for name in compared if name not in outputs]
    return LayerComparison(
        compared=tuple(compared),
        fused_away=tuple(fused_away),
        unread=tuple(unread),
        other_shape=tuple(other_shape),
        out_of_budget=tuple(out),
        others=tuple(name for name in obtained[0] if name not in names),
        num_inner=len(inner),
        silent_blocks=tuple(
            index for index in range(num_blocks) if not any(name.startswith(f"blocks.{index}.") for name in inner)
        ),
        num_engine_layers=reports[0].get("num_engine_layers"),
        worst_layer=worst[1],
        worst_share=worst[0],
    )


def _report(run: Arrays) -> dict[str, Any]:
    """What the engine's worker has to say about its debug tensors, taken out of the run's arrays."""
    characters = run.pop(REPORT, None)
    report: dict[str, Any] = {} if characters is None else json.loads("".join(map(chr, characters.tolist())))
    return report


def _run(
    session: Session | TorchSession, config: AndreaConfig, cases: Sequence[Case], cache: np.dtype[Any]
) -> list[Arrays]:
    """Each case's layers; a case that follows another takes its keys and values from it."""
    found: dict[str, Arrays] = {}
    for case in cases:
        found[case.name] = run_case(session, config, case, found, cache)
    return list(found.values())
