"""Layer by layer, one candidate against the reference, on the same inputs. Owns the inputs and the pairing.

Two cases cover the graph's two uses: a prefill of three rows of unequal length (left-padded, empty cache) and the
decode steps that follow it (full rows of cache). The error sums of a layer run over both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea_export.backends.base import Session, zero_cache
from andrea_export.dtypes import DTYPES, dtype_from_numpy
from andrea_export.errors import RunError
from andrea_export.judge import budget_of, verdict_of
from andrea_export.metrics import ErrorSums
from andrea_export.precision import PRECISIONS
from andrea_export.recipe import PrecisionName
from andrea_export.report import LayerRow
from andrea_export.specs import layer_names, present_names
from andrea_model.config import AndreaConfig
from andrea_model.model import Andrea

NUM_PREFILL, NUM_DECODE, NUM_ROWS = 48, 4, 3
Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run: a name and its inputs, the cache in fp64."""

    name: str
    feeds: Arrays


@dataclass(slots=True, kw_only=True)
class Reference:
    """The torch model's layers in fp64 for every case, and the error torch itself makes in each precision."""

    model: Andrea
    layers: tuple[str, ...]
    cases: list[Case]
    truths: list[Arrays]
    _torch_errors: dict[PrecisionName, dict[str, ErrorSums]] = field(default_factory=dict)

    def torch_errors(self, precision: PrecisionName) -> dict[str, ErrorSums]:
        """Layer → torch's own error in this precision, computed once. Raises: RunError."""
        from andrea_export.backends.torch_reference import TorchSession

        if precision not in self._torch_errors:
            with TorchSession(self.model, precision=precision, layers=self.layers) as session:
                self._torch_errors[precision] = self.observe(session, precision).errors
        return self._torch_errors[precision]

    def observe(self, session: Session, precision: PrecisionName) -> Observation:
        """What a session gives on every case, against the truth. A case it refuses is noted; the others still count."""
        seen = Observation(errors={name: ErrorSums() for name in self.layers})
        for case, truth in zip(self.cases, self.truths, strict=True):
            try:
                seen.arrays = session.run(_with_cache_type(case.feeds, precision))
            except RunError as error:
                seen.refusals.append(f"{case.name}: {error}")
                continue
            for name in self.layers:
                if name not in seen.arrays:
                    seen.problems[name] = "missing: the candidate has no such layer"
                elif seen.arrays[name].shape != truth[name].shape:
                    found, expected = list(seen.arrays[name].shape), list(truth[name].shape)
                    seen.problems[name] = f"has shape {found}, expected {expected}"
                else:
                    seen.errors[name].add(truth[name], seen.arrays[name])
        return seen


@dataclass(slots=True, kw_only=True)
class Observation:
    """One session's runs against the truth: errors by layer, and what stands in the way of a figure."""

    errors: dict[str, ErrorSums]
    arrays: Arrays = field(default_factory=dict)
    """The layers of the last case that ran."""
    problems: dict[str, str] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)


def reference_of(model: Andrea, *, seed: int = 0) -> Reference:
    """Runs the reference in fp64 on the comparison's inputs. ``seed`` picks the tokens."""
    from andrea_export.backends.torch_reference import TorchSession

    config = model.config
    layers = tuple(layer_names(config))
    with TorchSession(model, precision="fp64", layers=layers) as session:
        prefill = _prefill_case(config, seed)
        prefill_truth = session.run(prefill.feeds)
        decode = _decode_case(config, prefill, prefill_truth, seed)
        decode_truth = session.run(decode.feeds)
    return Reference(model=model, layers=layers, cases=[prefill, decode], truths=[prefill_truth, decode_truth])


def rows_from(
    seen: Observation, reference: Reference, *, candidate: str, precision: PrecisionName, layers: Sequence[str]
) -> tuple[LayerRow, ...]:
    """One row for every one of ``layers``, in model order, judged against torch's own error in this precision.

    A session that refused every case has no rows.
    """
    if not seen.arrays:
        return ()
    torch_errors = reference.torch_errors(precision)
    rows = []
    for name in layers:
        if name in seen.problems:
            row = LayerRow(
                name=name, candidate=candidate, verdict="fail", metrics={}, budget={}, problem=seen.problems[name]
            )
        else:
            error = seen.errors[name]
            budget = budget_of(torch_errors[name], dtype_from_numpy(seen.arrays[name].dtype).name)
            verdict = verdict_of(error, budget)
            row = LayerRow(name=name, candidate=candidate, verdict=verdict, metrics=error.as_metrics(), budget=budget)
        rows.append(row)
    return tuple(rows)


def inputs_as_mapping(reference: Reference) -> dict[str, Any]:
    """The comparison's inputs as a report states them."""
    return {
        case.name: {
            "batch": int(case.feeds["input_ids"].shape[0]),
            "sequence": int(case.feeds["input_ids"].shape[1]),
            "past": int(case.feeds["past_key_values.0.key"].shape[2]),
            "padding": [int(count) for count in (case.feeds["attention_mask"] == 0).sum(axis=1)],
        }
        for case in reference.cases
    }


def _prefill_case(config: AndreaConfig, seed: int) -> Case:
    ids = np.random.default_rng(seed).integers(0, config.vocab_size, (NUM_ROWS, NUM_PREFILL))
    mask = np.ones((NUM_ROWS, NUM_PREFILL), np.int64)
    mask[1, : NUM_PREFILL // 8] = 0
    mask[2, : NUM_PREFILL // 2] = 0
    feeds: Arrays = {
        "input_ids": ids,
        "attention_mask": mask,
        "position_ids": np.maximum(mask.cumsum(1) - 1, 0),
    }
    feeds.update(zero_cache(config, batch=NUM_ROWS, past=0, dtype=DTYPES["fp64"].numpy))
    return Case(name="prefill", feeds=feeds)


def _decode_case(config: AndreaConfig, prefill: Case, truth: Arrays, seed: int) -> Case:
    ids = np.random.default_rng(seed + 1).integers(0, config.vocab_size, (NUM_ROWS, NUM_DECODE))
    before = prefill.feeds["attention_mask"]
    mask = np.concatenate([before, np.ones((NUM_ROWS, NUM_DECODE), np.int64)], axis=1)
    feeds: Arrays = {
        "input_ids": ids,
        "attention_mask": mask,
        "position_ids": np.maximum(mask.cumsum(1) - 1, 0)[:, -NUM_DECODE:],
    }
    for index in range(config.n_layer):
        for part, name in zip(("key", "value"), present_names(index), strict=True):
            feeds[f"past_key_values.{index}.{part}"] = truth[name]
    return Case(name="decode", feeds=feeds)


def _with_cache_type(feeds: Arrays, precision: PrecisionName) -> Arrays:
    cache_type = DTYPES[PRECISIONS[precision].cache_dtype].numpy
    return {
        name: value.astype(cache_type) if name.startswith("past_key_values.") else value
        for name, value in feeds.items()
    }
