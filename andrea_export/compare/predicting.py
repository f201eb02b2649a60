"""The language model's rows: reference and candidates through one suite of cases, every row unjudged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from andrea_export.compare.language_model import (
    Logits,
    Predictions,
    Suite,
    candidate_predictions,
    figures,
    max_abs_errors,
    reference_predictions,
    run_of_text,
)
from andrea_export.compare.sources.base import Source
from andrea_export.core.errors import BackendUnavailable, MismatchError, RunError
from andrea_export.core.progress import Progress
from andrea_export.report.schema import LanguageModelRow
from andrea_model.model import Andrea

STEP = "language model"


def language_rows(
    reference: Source, candidates: Sequence[Source], text: tuple[int, ...], *, progress: Progress
) -> list[LanguageModelRow]:
    """Every case of every candidate; none for a text that is empty. A case that could not be run says why.

    Raises: RunError or BackendUnavailable where the reference cannot be run; MismatchError where a recorded reference
    holds no predictions.
    """
    if not text:
        return []
    suite = Suite(config=reference.identity.config, text=text)
    progress.detail(STEP, f"{reference.identity.name}, {suite.longest} tokens")
    truth = _reference_predictions(reference, suite)
    basis = _Basis(reference, suite, truth, progress)
    rows = []
    for candidate in candidates:
        progress.detail(STEP, candidate.identity.name)
        try:
            found = _candidate_predictions(candidate, suite)
        except BackendUnavailable:
            continue  # the candidate itself says that it was not measured
        except RunError as error:
            found = Predictions(problems=dict.fromkeys(suite.cases, str(error)))
        errors = basis.of(candidate.identity.precision)
        rows += [_row(candidate, case, suite, truth, found, errors) for case in suite.cases]
    return rows


def language_basis(model: Andrea, suite: Suite, truth: Logits, precision: str) -> dict[str, float]:
    """Case → the largest error of torch's own logits in a precision, against the truth ``[L, V]`` of the long run."""
    from andrea_export.sessions.torch_reference import TorchSession

    if precision == "fp64":
        return dict.fromkeys(suite.cases, 0.0)
    with TorchSession(model, precision=precision) as session:
        return max_abs_errors(run_of_text(session, suite, precision), truth, suite)


def _reference_predictions(reference: Source, suite: Suite) -> Predictions:
    trace = reference.recorded()
    if trace is not None:
        recorded = trace.predictions
        if recorded is None:
            raise MismatchError(
                f"reference trace {trace.path} holds no predictions",
                hint="record it with its language model, or compare with --no-language-model",
            )
        return recorded
    session = reference.session()
    assert session is not None
    with session:
        return reference_predictions(session, suite, reference.identity.precision)


def _candidate_predictions(candidate: Source, suite: Suite) -> Predictions:
    trace = candidate.recorded()
    if trace is not None:
        reason = "the trace was recorded without its language model"
        return trace.predictions or Predictions(problems=dict.fromkeys(suite.cases, reason))
    session = candidate.session()
    assert session is not None
    with session:
        return candidate_predictions(session, suite, candidate.identity.precision)


class _Basis:
    """Precision → case → torch's own largest error of a logit; the reference's own precision counts as well."""

    def __init__(self, reference: Source, suite: Suite, predictions: Predictions, progress: Progress) -> None:
        self._suite = suite
        self._trace = reference.recorded()
        self._model = reference.weights()
        self._reference_precision = reference.identity.precision
        self._progress = progress
        self._errors: dict[str, dict[str, float]] = {}
        self._truth: Logits | None = None
        if reference.identity.kind == "checkpoint" and self._reference_precision == "fp64":
            self._truth = predictions.logits[f"context {suite.longest}"]

    def of(self, precision: str) -> Mapping[str, float]:
        """Case → basis of ``max_abs``."""
        if self._trace is not None:
            recorded = self._trace.header.basis.get(precision)
            return recorded.language_model if recorded is not None else {}
        own = self._measured(precision)
        if self._reference_precision == "fp64":
            return own
        theirs = self._measured(self._reference_precision)
        return {case: error + theirs[case] for case, error in own.items()}

    def _measured(self, precision: str) -> dict[str, float]:
        assert self._model is not None  # compare.budget_basis has refused a reference without weights
        if precision not in self._errors:
            self._progress.detail(STEP, f"torch's own error in {precision}")
            if self._truth is None:
                from andrea_export.sessions.torch_reference import TorchSession

                with TorchSession(self._model, precision="fp64") as session:
                    self._truth = run_of_text(session, self._suite, "fp64")
            self._errors[precision] = language_basis(self._model, self._suite, self._truth, precision)
        return self._errors[precision]


def _row(
    candidate: Source,
    case: str,
    suite: Suite,
    reference: Predictions,
    found: Predictions,
    errors: Mapping[str, float],
) -> LanguageModelRow:
    name = candidate.identity.name
    has_both = case in found.logits or (case == "greedy" and bool(found.greedy_tokens) and case not in found.problems)
    if not has_both:
        return LanguageModelRow(
            candidate=name,
            case=case,
            context=suite.cases[case],
            num_positions=0,
            verdict="not-measured",
            metrics={},
            budget={},
            reason=found.problems.get(case, "not run"),
        )
    num_positions, metrics = figures(case, suite, reference, found)
    return LanguageModelRow(
        candidate=name,
        case=case,
        context=suite.cases[case],
        num_positions=num_positions,
        verdict="not-measured",  # until it is judged
        metrics=metrics,
        budget={},
        basis={"max_abs": errors[case]} if case in errors else {},
    )
