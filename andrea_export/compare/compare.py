"""The comparison itself: reference and candidates side by side, a segment of layers at a time, each then forgotten.

Owns what is fed to whom and which figures become rows; every row leaves here unjudged (``judging`` applies a policy).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from andrea_export.compare.basis import BudgetBasis, LayerBasis, MeasuredBasis, RecordedBasis
from andrea_export.compare.inputs import Arrays, Case, Inputs
from andrea_export.compare.runs import ByCase, LayerRun
from andrea_export.compare.session_run import run_case
from andrea_export.compare.sources.base import Source, cache_dtype_of
from andrea_export.core.dtypes import DTYPES
from andrea_export.core.errors import AndreaError, BackendUnavailable, MismatchError, RunError, TraceError
from andrea_export.core.names import Segment, graph_outputs, present_names, segments
from andrea_export.core.precision import PRECISIONS
from andrea_export.core.progress import Progress
from andrea_export.report.metrics import LayerErrors
from andrea_export.report.schema import Candidate, LayerRow, LocalError, Verdict
from andrea_model.config import AndreaConfig

STEP = "compare"
_OTHER_WAY_ROUND = "taken the other way round: the reference's layer was fed the recorded input"


class Observer(Protocol):
    """Looks at the reference's layers as they pass."""

    def see(self, segment: Segment, reference: ByCase) -> None:
        """Takes in one segment."""
        ...


@dataclass(slots=True, kw_only=True)
class Compared:
    """One candidate and its rows, not yet judged."""

    source: Source
    candidate: Candidate
    rows: list[LayerRow] = field(default_factory=list)


def compare(
    reference: Source,
    candidates: Sequence[Source],
    inputs: Inputs,
    *,
    observers: Sequence[Observer] = (),
    progress: Progress,
) -> list[Compared]:
    """Every candidate against the reference on all cases, layer by layer, and then as it ships.

    Raises: BackendUnavailable, RunError or TraceError where the reference cannot be run; MismatchError where budgets
    can be derived from nothing. A candidate that cannot be run is in the result, with its reason.
    """
    config = reference.identity.config
    basis = budget_basis(reference, candidates, inputs.cases)
    with ExitStack() as stack:
        reference_run = reference.layers(inputs.cases)
        stack.callback(reference_run.close)
        followed = [_Followed(source, reference, inputs.cases) for source in candidates]
        for entry in followed:
            entry.open()
            stack.callback(entry.close)
        truth = _truth_run(reference, reference_run, basis)
        runs = [reference_run, *(entry.run for entry in followed if entry.run is not None)]
        if truth is not None:
            runs.append(truth)
        stream = Stream(config, inputs.cases, runs)
        for segment in segments(config):
            progress.detail(STEP, segment.name)
            layers = reference_run.accumulated(segment)
            _check_reference(reference, segment, layers)
            given = stream.given(segment, layers)
            for observer in observers:
                observer.see(segment, layers)
            basis.measure(segment, layers, given)
            for entry in followed:
                entry.take(segment, layers, given, basis, truth)
            stream.forget(segment)
        for entry in followed:
            progress.detail(STEP, f"{entry.source.identity.name} as it ships")
            entry.run_as_shipped(stream.outputs)
        return [entry.result() for entry in followed]


def not_measured(source: Source, reason: str) -> Compared:
    """A candidate that was not run, and why."""
    return Compared(source=source, candidate=_candidate(source, "not-measured", reason, source.facts))


def budget_basis(reference: Source, candidates: Iterable[Source], cases: Sequence[Case]) -> BudgetBasis:
    """Measured with the reference's weights, or as a trace recorded it. Raises MismatchError where there is neither."""
    precisions = [candidate.identity.precision for candidate in candidates]
    model = reference.weights()
    if model is not None:
        return MeasuredBasis(model, cases, precisions, reference_precision=reference.identity.precision)
    trace = reference.recorded()
    if trace is not None:
        return RecordedBasis(trace, precisions)
    raise MismatchError(
        f"reference {reference.identity.name} holds no fp32 weights, so there is nothing to derive budgets from",
        hint="use a checkpoint, the bundle's fp32 ONNX file or a recorded trace as the reference",
    )


class Stream:
    """What later segments need of earlier ones: the reference's, as far as any run asks for it, and its outputs."""

    def __init__(self, config: AndreaConfig, cases: Sequence[Case], runs: Sequence[LayerRun]) -> None:
        self._cases = cases
        order = segments(config)
        self._needed_after = {
            segment.name: {name for later in order[index + 1 :] for run in runs for name in run.needs(later)}
            for index, segment in enumerate(order)
        }
        self._carried: dict[str, Arrays] = {case.name: {} for case in cases}
        self._output_names = {spec.name for spec in graph_outputs(config)}
        self.outputs: ByCase = {case.name: {} for case in cases}

    def given(self, segment: Segment, layers: ByCase) -> dict[str, Arrays]:
        """By case: these layers, those carried on, and the past keys and values they were computed with."""
        for case, found in layers.items():
            self._carried[case].update(found)
            self.outputs[case].update({name: value for name, value in found.items() if name in self._output_names})
        return given_of(segment, self._cases, self._carried, layers)

    def forget(self, segment: Segment) -> None:
        """Drops what no later segment needs."""
        needed = self._needed_after[segment.name]
        self._carried = {
            case: {name: value for name, value in found.items() if name in needed}
            for case, found in self._carried.items()
        }


def given_of(
    segment: Segment, cases: Sequence[Case], carried: Mapping[str, Arrays], layers: ByCase
) -> dict[str, Arrays]:
    """By case: the carried layers and the segment's own, and the past keys and values they were computed with."""
    given = {}
    for case in cases:
        if case.name not in layers:
            continue
        values = {**carried[case.name], **layers[case.name]}
        if segment.block is not None:
            for part, name in zip(("key", "value"), present_names(segment.block), strict=True):
                past = layers.get(case.past_of or case.name, {}).get(name)
                if past is not None:
                    values[f"past_key_values.{segment.block}.{part}"] = past if case.past_of else past[:, :, :0]
        given[case.name] = values
    return given


class _Followed:
    """One candidate through the comparison."""

    def __init__(self, source: Source, reference: Source, cases: Sequence[Case]) -> None:
        self.source = source
        self._reference_shows_layers = reference.shows_layers
        self.run: LayerRun | None = None
        self._cases = cases
        self._positions = {case.name: case.token_positions for case in cases}
        self._output_names = frozenset(spec.name for spec in graph_outputs(source.identity.config))
        self._rows: list[LayerRow] = []
        self._refusal = ""
        self._refusals: list[str] = []
        self._unavailable = ""
        self._facts: dict[str, Any] = {}
        self._outputs: ByCase = {}
        self._carried: dict[str, Arrays] = {case.name: {} for case in cases}

    def open(self) -> None:
        """Starts the run, or notes why it cannot be."""
        try:
            self.run = self.source.layers(self._cases)
        except BackendUnavailable as error:
            self._unavailable = str(error)
        except (TraceError, MismatchError):  # bad input, not a fault of the model
            raise
        except AndreaError as error:
            self._refusal = str(error)

    def close(self) -> None:
        """Releases the run."""
        if self.run is not None:
            self._refusals += self.run.refusals
            self.run.close()
            self.run = None

    def take(
        self,
        segment: Segment,
        reference: ByCase,
        given: Mapping[str, Arrays],
        basis: BudgetBasis,
        truth: LayerRun | None,
    ) -> None:
        """Adds the rows of one segment."""
        if self.run is None:
            return
        try:
            found = self.run.accumulated(segment)
            local = self.run.local(segment, given) if self.source.shows_layers else {}
        except BackendUnavailable as error:
            self._unavailable = str(error)
            self._rows.clear()
            self.close()
            return
        except RunError as error:
            self._refusal = str(error)
            self.close()
            return
        expected: ByCase = reference
        note = ""
        if not local and self.source.recorded() is not None and self.source.shows_layers and truth is not None:
            local, expected, note = found, self._fed_back(segment, found, truth), _OTHER_WAY_ROUND
        precision = self.source.identity.precision
        accumulated_basis, local_basis = basis.accumulated(precision, segment), basis.local(precision, segment)
        for layer in segment.layers:
            if not self.source.shows_layers and layer not in self._output_names:
                continue  # fused away: not a layer of this candidate
            if not self._reference_shows_layers and not any(layer in layers for layers in reference.values()):
                continue
            row = self._row(layer, reference, found, accumulated_basis)
            self._rows.append(_with_local(row, layer, self._dtype_of(layer), expected, local, local_basis, note))
        for case, layers in found.items():
            outputs = {name: value for name, value in layers.items() if name == "logits" or name.startswith("present.")}
            self._outputs.setdefault(case, {}).update(outputs)

    def run_as_shipped(self, reference: ByCase) -> None:
        """Runs the whole graph without taps: its outputs' rows are of this run, and how far the taps moved is noted."""
        if self._refusal or self._unavailable or self.source.recorded() is not None or not self.source.shows_layers:
            return
        identity = self.source.identity
        shipped: ByCase = {}
        try:
            session = self.source.session()
            assert session is not None
            with session:
                for case in self._cases:
                    try:
                        shipped[case.name] = run_case(
                            session, identity.config, case, shipped, cache_dtype_of(identity.precision)
                        )
                    except RunError as error:
                        self._refusals.append(f"{case.name}, as shipped: {error}")
        except BackendUnavailable as error:
            self._unavailable = str(error)
            self._rows.clear()
            return
        except RunError as error:
            self._refusal = str(error)
            return
        self._facts["taps_moved_logits_by"] = _largest_difference(shipped, self._outputs, "logits")
        self._facts["taps_moved_outputs_by"] = _largest_difference(shipped, self._outputs, "")
        self._facts["logits_max_abs_as_shipped"] = _largest_difference(shipped, reference, "logits")
        for index, row in enumerate(self._rows):
            if row.name in self._output_names and not row.problem:
                self._rows[index] = replace(
                    self._row(row.name, reference, shipped, {row.name: row.basis}), local=row.local
                )

    def result(self) -> Compared:
        """The candidate with its rows."""
        refusals = [*self._refusals, *([self._refusal] if self._refusal else [])]
        if self.run is not None:
            refusals += self.run.refusals
        facts = {**self.source.facts, **self._facts}
        if refusals:
            facts["refused"] = "; ".join(refusals)
        if not self.source.shows_layers and self._rows:
            facts["fused_away"] = "every layer but the graph's outputs"
        verdict: Verdict = "not-measured" if self._unavailable else "fail" if refusals else "pass"
        candidate = _candidate(self.source, verdict, self._unavailable or "; ".join(refusals), facts)
        return Compared(source=self.source, candidate=candidate, rows=self._rows)

    def _fed_back(self, segment: Segment, found: ByCase, truth: LayerRun) -> ByCase:
        """What the reference's layers make of the candidate's own inputs."""
        for case, layers in found.items():
            self._carried[case].update(layers)
        expected = truth.local(segment, given_of(segment, self._cases, self._carried, found))
        stream = {"mask", segment.layers[-1]}
        self._carried = {
            case: {name: value for name, value in layers.items() if name in stream}
            for case, layers in self._carried.items()
        }
        return expected

    def _dtype_of(self, layer: str) -> str:
        """The type the candidate's precision has for a layer: a budget is that of this type, not of what came back."""
        return PRECISIONS[self.source.identity.precision].layer_dtype(layer)

    def _row(self, layer: str, reference: ByCase, found: ByCase, basis: LayerBasis) -> LayerRow:
        errors = LayerErrors()
        problem = ""
        for case, layers in found.items():
            if layer not in reference[case]:
                problem = "not measured: the reference has no such layer"
            elif layer not in layers:
                problem = "missing: the candidate has no such layer"
            elif layers[layer].shape != reference[case][layer].shape:
                shape, expected = list(layers[layer].shape), list(reference[case][layer].shape)
                problem = f"has shape {shape}, expected {expected}"
            elif layers[layer].dtype != DTYPES[self._dtype_of(layer)].numpy:
                problem = f"has type {layers[layer].dtype}, expected {self._dtype_of(layer)}"
            else:
                value, dtype = layers[layer], self._dtype_of(layer)
                errors.add(case, reference[case][layer], value, dtype=dtype, positions=self._positions[case])
                continue
            break
        if not found:
            problem = "missing: the candidate ran no case"
        if problem:
            return LayerRow(
                name=layer, candidate=self.source.identity.name, verdict="fail", metrics={}, budget={}, problem=problem
            )
        return LayerRow(
            name=layer,
            candidate=self.source.identity.name,
            verdict="not-measured",  # until it is judged
            metrics=errors.as_metrics(),
            budget={},
            basis=basis.get(layer, {}),
            dtype=errors.dtype,
            worst=errors.worst,
            ulp_histogram=errors.ulp_histogram(),
            spread=errors.spread(),
        )


def _with_local(
    row: LayerRow, layer: str, dtype: str, expected: ByCase, found: ByCase, basis: LayerBasis, note: str
) -> LayerRow:
    """The row with its local error beside it, or the reason why it has none."""
    errors = LayerErrors()
    for case, layers in found.items():
        if layer not in layers or layer not in expected.get(case, {}):
            continue
        value, truth = layers[layer], expected[case][layer]
        if value.shape != truth.shape or value.dtype != DTYPES[dtype].numpy:
            return row  # the accumulated error's problem says so already
        errors.add(case, truth, value, dtype=dtype)
    if not errors.dtype:
        reason = "the layer is missing" if row.problem else "the candidate cannot be fed, layer by layer"
        return replace(row, local=LocalError(verdict="not-measured", reason=reason))
    local = LocalError(
        verdict="not-measured",  # until it is judged
        metrics=errors.as_metrics(),
        basis=basis.get(layer, {}),
        worst=errors.worst,
        reason=note,
    )
    return replace(row, local=local)


def _candidate(source: Source, verdict: Verdict, reason: str, facts: Mapping[str, object]) -> Candidate:
    identity = source.identity
    return Candidate(
        name=identity.name,
        verdict=verdict,
        reason=reason,
        precision=identity.precision,
        facts=facts,
        provenance={"kind": identity.kind, "weights": identity.weights, **identity.provenance},
    )


def _truth_run(reference: Source, run: LayerRun, basis: BudgetBasis) -> LayerRun | None:
    """Torch in fp64, whose layers can be fed: the reference itself, or the budgets' truth; None if there is neither."""
    if reference.identity.kind == "checkpoint" and reference.identity.precision == "fp64":
        return run
    return basis.truth if isinstance(basis, MeasuredBasis) else None


def _check_reference(reference: Source, segment: Segment, layers: ByCase) -> None:
    """Raises TraceError where a recorded reference holds Inf: nothing can be measured against it."""
    if reference.recorded() is None:
        return
    for case, found in layers.items():
        for name, value in found.items():
            if value.dtype != np.bool_ and np.isinf(value).any():
                raise TraceError(
                    f"the reference trace has Inf in {name} ({case}): nothing can be measured against it",
                    hint="record a run that is sound",
                )


def _largest_difference(ours: ByCase, theirs: ByCase, name: str) -> float | None:
    """The largest |difference| of the outputs of this name ("" for all) over all cases; infinite for NaN or Inf.

    None where a case or an output is on one side only: then there is nothing to say.
    """
    if set(ours) != set(theirs) or not ours:
        return None
    largest = 0.0
    for case, outputs in ours.items():
        wanted = {output for output in {*outputs, *theirs[case]} if name in ("", output)}
        if not all(output in outputs and output in theirs[case] for output in wanted) or not wanted:
            return None
        for output in wanted:
            if outputs[output].shape != theirs[case][output].shape:
                return None
            with np.errstate(invalid="ignore"):
                difference = np.abs(outputs[output].astype(np.float64) - theirs[case][output].astype(np.float64))
            if not np.isfinite(difference).all():
                return math.inf
            largest = max(largest, float(difference.max(initial=0.0)))
    return largest
