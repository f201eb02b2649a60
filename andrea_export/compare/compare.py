"""The comparison itself: reference and candidates side by side, a segment of layers at a time, each then forgotten;
then as language models, on one suite of cases.

Owns the order of things; every row leaves here unjudged (``judge.verdicts`` applies a policy).
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from andrea_export.compare.followed import Followed, candidate_of
from andrea_export.compare.inputs import Inputs
from andrea_export.compare.language.figures import figures
from andrea_export.compare.language.suite import Predictions, Suite
from andrea_export.compare.plugin_maths import PluginMaths
from andrea_export.compare.runs import Stream
from andrea_export.compare.sources.base import Source
from andrea_export.core.errors import BackendUnavailable, RunError
from andrea_export.core.names import segments
from andrea_export.core.progress import Progress
from andrea_export.report.schema import Candidate, LanguageModelRow, LayerRow

STEP, LANGUAGE_STEP = "compare", "language model"


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
    observers: Sequence[PluginMaths] = (),
    progress: Progress,
) -> list[Compared]:
    """Every candidate against the reference on all cases, layer by layer, and then as it ships.

    Raises: BackendUnavailable, RunError or TraceError where the reference cannot be run; MismatchError where there is
    nothing to derive budgets from. A candidate that cannot be run is in the result, with its reason.
    """
    config, cases = reference.identity.config, inputs.cases
    basis = reference.budgets([candidate.rounding for candidate in candidates], cases)
    with ExitStack() as stack:
        run = reference.layers(cases)
        stack.callback(run.close)
        truth = run if reference.is_truth else basis.truth
        followed = [Followed(source, cases, truth) for source in candidates]
        for entry in followed:
            entry.open()
            stack.callback(entry.close)
        runs = [run, *(entry.run for entry in followed if entry.run is not None)]
        stream = Stream(config, cases, [*runs, *([truth] if truth is not None else [])])
        for segment in segments(config):
            progress.detail(STEP, segment.name)
            layers = run.accumulated(segment)
            reference.check_as_reference(segment, layers)
            given = stream.given(segment, layers)
            for observer in observers:
                observer.see(segment, layers)
            basis.measure(segment, layers, given)
            names = frozenset(layer for layer in segment.layers if run.visible.has(layer))
            for entry in followed:
                entry.take(segment, layers, names=names, given=given, basis=basis)
            stream.forget(segment)
        for entry in followed:
            progress.detail(STEP, f"{entry.source.identity.name} as it ships")
            entry.finish(stream.outputs)
        return [Compared(source=entry.source, candidate=entry.candidate(), rows=entry.rows) for entry in followed]


def not_measured(source: Source, reason: str) -> Compared:
    """A candidate that was not run, and why."""
    return Compared(source=source, candidate=candidate_of(source, "not-measured", reason, source.facts))


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
    progress.detail(LANGUAGE_STEP, f"{reference.identity.name}, {suite.longest} tokens")
    truth = reference.reference_predictions(suite)
    basis = reference.budgets([candidate.rounding for candidate in candidates], ())
    rows = []
    for candidate in candidates:
        progress.detail(LANGUAGE_STEP, candidate.identity.name)
        try:
            found = candidate.candidate_predictions(suite)
        except BackendUnavailable:
            continue  # the candidate itself says that it was not measured
        except RunError as error:
            found = Predictions(problems=dict.fromkeys(suite.cases, str(error)))
        rounding = candidate.rounding.name
        progress.detail(LANGUAGE_STEP, f"torch's own error in {rounding}")
        errors = basis.language_model(rounding, suite, truth)
        rows += [_row(candidate, case, suite, truth, found, errors) for case in suite.cases]
    return rows


def _row(
    candidate: Source, case: str, suite: Suite, reference: Predictions, found: Predictions, errors: Mapping[str, float]
) -> LanguageModelRow:
    was_run = case in found.logits or (case == "greedy" and bool(found.greedy_tokens) and case not in found.problems)
    num_positions, metrics = figures(case, suite, reference, found) if was_run else (0, {})
    return LanguageModelRow(
        candidate=candidate.identity.name,
        case=case,
        context=suite.cases[case],
        num_positions=num_positions,
        verdict="not-measured",  # until it is judged
        metrics=metrics,
        budget={},
        basis={"max_abs": errors[case]} if was_run and case in errors else {},
        reason="" if was_run else found.problems.get(case, "not run"),
    )
