"""The language model's rows: reference and candidates through one suite of cases, every row unjudged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from andrea_export.compare.language.figures import figures
from andrea_export.compare.language.suite import Predictions, Suite
from andrea_export.compare.sources.base import Source
from andrea_export.core.errors import BackendUnavailable, RunError
from andrea_export.core.progress import Progress
from andrea_export.report.schema import LanguageModelRow

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
    truth = reference.reference_predictions(suite)
    basis = reference.budgets([candidate.rounding for candidate in candidates], ())
    rows = []
    for candidate in candidates:
        progress.detail(STEP, candidate.identity.name)
        try:
            found = candidate.candidate_predictions(suite)
        except BackendUnavailable:
            continue  # the candidate itself says that it was not measured
        except RunError as error:
            found = Predictions(problems=dict.fromkeys(suite.cases, str(error)))
        rounding = candidate.rounding.name
        progress.detail(STEP, f"torch's own error in {rounding}")
        errors = basis.language_model(rounding, suite, truth)
        rows += [_row(candidate, case, suite, truth, found, errors) for case in suite.cases]
    return rows


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
