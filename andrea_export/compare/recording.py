"""Recording: one source run on all cases and on the text, kept and written; with weights, the basis of budgets."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from andrea_export.compare.basis import MeasuredBasis
from andrea_export.compare.inputs import Arrays, Inputs
from andrea_export.compare.language.suite import Predictions, Suite, add_greedy_leads, candidate_predictions
from andrea_export.compare.runs import Stream, rounding_of
from andrea_export.compare.sources.base import Identity, Source
from andrea_export.compare.trace_file import Header, PrecisionBasis, first_nan, tensor_sha256
from andrea_export.core.dtypes import DTYPES
from andrea_export.core.errors import RunError, ValidationError
from andrea_export.core.names import TRACE_KEY, segments
from andrea_export.core.precision import JUDGED_PRECISIONS
from andrea_export.core.progress import Progress

STEP = "record"


@dataclass(slots=True, kw_only=True)
class Recording:
    """A trace in memory, as it is written."""

    identity: Identity
    inputs: Inputs
    layers: dict[str, Arrays]
    """Case → layer → tensor."""
    predictions: Predictions | None = None
    basis: Mapping[str, PrecisionBasis] = field(default_factory=dict)


def write_trace(recording: Recording, file: Path) -> None:
    """Writes the trace beside its place and renames it, so that a file of this name is whole."""
    tensors: Arrays = {}
    for case in recording.inputs.cases:
        tensors.update({f"inputs/{case.name}/{name}": value for name, value in case.feeds.items()})
        layers = recording.layers[case.name]
        tensors.update({f"layers/{case.name}/{name}": value for name, value in layers.items()})
    tensors["text"] = np.array(recording.inputs.text, np.int64)
    if recording.predictions is not None:
        tensors.update({f"logits/{case}": value for case, value in recording.predictions.logits.items()})
    dtypes = {name: "bf16" for name, value in tensors.items() if value.dtype == DTYPES["bf16"].numpy}
    stored = {
        name: np.ascontiguousarray(value.view(np.uint16) if name in dtypes else value)
        for name, value in tensors.items()
    }
    identity = recording.identity
    header = Header(
        name=identity.name,
        precision=identity.precision,
        config=identity.config,
        weights=identity.weights,
        origin=identity.origin,
        provenance=identity.provenance,
        cases=tuple((case.name, case.past_of) for case in recording.inputs.cases),
        inputs_source=recording.inputs.source,
        layers=tuple(next(iter(recording.layers.values()), {})),
        dtypes=dtypes,
        sha256={name: tensor_sha256(value) for name, value in stored.items()},
        greedy_tokens=recording.predictions.greedy_tokens if recording.predictions else (),
        problems=recording.predictions.problems if recording.predictions else {},
        basis=recording.basis,
    )
    stated = {**asdict(header), "config": identity.config.stated()}
    partial = file.with_name(f".{file.name}.partial")
    try:
        save_file(stored, partial, metadata={TRACE_KEY: json.dumps(stated)})
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def record(source: Source, inputs: Inputs, *, progress: Progress) -> Recording:
    """The trace of one source.

    Raises: BackendUnavailable, RunError where it cannot be run; ValidationError naming the first layer with NaN.
    """
    identity = source.identity
    progress.start(STEP)
    run = source.layers(inputs.cases)
    basis = source.measured_basis([rounding_of(name) for name in JUDGED_PRECISIONS], inputs.cases)
    layers: dict[str, Arrays] = {case.name: {} for case in inputs.cases}
    accumulated: dict[str, dict[str, Mapping[str, float]]] = {name: {} for name in JUDGED_PRECISIONS}
    local: dict[str, dict[str, Mapping[str, float]]] = {name: {} for name in JUDGED_PRECISIONS}
    truth = [basis.truth] if basis is not None and basis.truth is not None else []
    stream = Stream(identity.config, inputs.cases, [run, *truth])
    for segment in segments(identity.config):
        progress.detail(STEP, segment.name)
        found = run.accumulated(segment)
        _check_numbers(identity.name, segment.layers, found)
        for case, tensors in found.items():
            layers[case].update(tensors)
        if basis is not None:
            basis.measure(segment, found, stream.given(segment, found))
            for name in JUDGED_PRECISIONS:
                accumulated[name].update(basis.accumulated(name))
                local[name].update(basis.local(name))
            stream.forget(segment)
    if run.refusals:
        raise RunError(f"{identity.name} was not recorded: {'; '.join(run.refusals)}")
    run.close()
    predictions, language = _predictions(source, basis, inputs, progress)
    progress.finish(STEP, f"{sum(len(tensors) for tensors in layers.values())} tensors")
    return Recording(
        identity=identity,
        inputs=inputs,
        layers=layers,
        predictions=predictions,
        basis={
            name: PrecisionBasis(
                accumulated=accumulated[name], local=local[name], language_model=language.get(name, {})
            )
            for name in JUDGED_PRECISIONS
            if basis is not None
        },
    )


def _check_numbers(name: str, layers: Iterable[str], found: Mapping[str, Arrays]) -> None:
    """Raises ValidationError naming the first of the layers with NaN: what is compared with it could only fail."""
    for layer in layers:
        for case, tensors in found.items():
            where = first_nan(tensors[layer]) if layer in tensors else None
            if where is not None:
                raise ValidationError(
                    f"{name} was not recorded: {layer} is NaN, first at [{', '.join(map(str, where))}] of {case}",
                    hint=f"{layer} is the first layer with NaN; compare the model itself to see every layer",
                )


def _predictions(
    source: Source, basis: MeasuredBasis | None, inputs: Inputs, progress: Progress
) -> tuple[Predictions | None, Mapping[str, Mapping[str, float]]]:
    """What the source predicts on the text, and precision → case → basis; nothing where there is no text."""
    if not inputs.text:
        return None, {}
    suite, identity = Suite(config=source.identity.config, text=inputs.text), source.identity
    progress.detail(STEP, f"language model, {suite.longest} tokens")
    with source.session() as session:
        found = candidate_predictions(session, suite, identity.precision)
        add_greedy_leads(session, suite, identity.precision, found)
    _check_numbers(identity.name, ["logits"], {case: {"logits": logits} for case, logits in found.logits.items()})
    if basis is None:
        return found, {}
    errors = {}
    for name in JUDGED_PRECISIONS:
        progress.detail(STEP, f"torch's own error in {name}")
        errors[name] = basis.language_model(name, suite, found)
    return found, errors
