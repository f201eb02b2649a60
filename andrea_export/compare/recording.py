"""Recording: one source run on all cases and on the text, kept whole; with weights, the basis of budgets too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from andrea_export.compare.basis import MeasuredBasis
from andrea_export.compare.compare import Stream
from andrea_export.compare.inputs import Arrays, Inputs
from andrea_export.compare.language_model import (
    Logits,
    Predictions,
    Suite,
    add_greedy_leads,
    candidate_predictions,
    run_of_text,
)
from andrea_export.compare.predicting import language_basis
from andrea_export.compare.sources.base import Source
from andrea_export.compare.trace_file import PrecisionBasis, Recording, first_nan
from andrea_export.core.errors import RunError, ValidationError
from andrea_export.core.names import segments
from andrea_export.core.precision import JUDGED_PRECISIONS
from andrea_export.core.progress import Progress
from andrea_export.sessions.base import Session
from andrea_model.model import Andrea

STEP = "record"


def record(source: Source, inputs: Inputs, *, progress: Progress) -> Recording:
    """The trace of one source.

    Raises: BackendUnavailable, RunError where it cannot be run; ValidationError naming the first layer with NaN.
    """
    identity = source.identity
    progress.start(STEP)
    run = source.layers(inputs.cases)
    model = source.weights()
    basis = None
    if model is not None:
        basis = MeasuredBasis(model, inputs.cases, JUDGED_PRECISIONS, reference_precision=identity.precision)
    layers: dict[str, Arrays] = {case.name: {} for case in inputs.cases}
    accumulated: dict[str, dict[str, dict[str, float]]] = {name: {} for name in JUDGED_PRECISIONS}
    local: dict[str, dict[str, dict[str, float]]] = {name: {} for name in JUDGED_PRECISIONS}
    stream = Stream(identity.config, inputs.cases, [run, *([basis.truth] if basis is not None else [])])
    for segment in segments(identity.config):
        progress.detail(STEP, segment.name)
        found = run.accumulated(segment)
        _check_numbers(identity.name, segment.layers, found)
        for case, tensors in found.items():
            layers[case].update(tensors)
        if basis is not None:
            basis.measure(segment, found, stream.given(segment, found))
            for name in JUDGED_PRECISIONS:
                accumulated[name].update({key: dict(row) for key, row in basis.accumulated(name, segment).items()})
                local[name].update({key: dict(row) for key, row in basis.local(name, segment).items()})
            stream.forget(segment)
    if run.refusals:
        raise RunError(f"{identity.name} was not recorded: {'; '.join(run.refusals)}")
    run.close()
    predictions, language = _predictions(source, model, inputs, progress)
    progress.finish(STEP, f"{sum(len(tensors) for tensors in layers.values())} tensors")
    return Recording(
        name=identity.name,
        precision=identity.precision,
        config=identity.config,
        weights=identity.weights,
        origin=identity.origin,
        provenance=identity.provenance,
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
    source: Source, model: Andrea | None, inputs: Inputs, progress: Progress
) -> tuple[Predictions | None, dict[str, dict[str, float]]]:
    """What the source predicts on the text, and precision → case → basis; nothing where there is no text."""
    if not inputs.text:
        return None, {}
    suite = Suite(config=source.identity.config, text=inputs.text)
    session = source.session()
    if session is None:
        return None, {}
    progress.detail(STEP, f"language model, {suite.longest} tokens")
    with session:
        found = _recorded_predictions(session, suite, source.identity.precision)
    _check_numbers(source.identity.name, ["logits"], {case: {"logits": found.logits[case]} for case in found.logits})
    return found, _language_basis(source, model, suite, found, progress) if model is not None else {}


def _recorded_predictions(session: Session, suite: Suite, precision: str) -> Predictions:
    found = candidate_predictions(session, suite, precision)
    add_greedy_leads(session, suite, precision, found)
    return found


def _language_basis(
    source: Source, model: Andrea, suite: Suite, found: Predictions, progress: Progress
) -> dict[str, dict[str, float]]:
    from andrea_export.sessions.torch_reference import TorchSession

    own = source.identity.precision
    truth: Logits
    if source.identity.kind == "checkpoint" and own == "fp64":
        truth = found.logits[f"context {suite.longest}"]
    else:
        with TorchSession(model, precision="fp64") as session:
            truth = run_of_text(session, suite, "fp64")
    basis: dict[str, dict[str, float]] = {}
    for name in JUDGED_PRECISIONS:
        progress.detail(STEP, f"torch's own error in {name}")
        basis[name] = language_basis(model, suite, truth, name)
    if own == "fp64":
        return basis
    return {name: {case: error + basis[own][case] for case, error in row.items()} for name, row in basis.items()}
