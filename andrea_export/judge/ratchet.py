"""The ratchet: figures beside those of an earlier report, and whether one worsened by more than is allowed."""

from collections.abc import Iterator, Mapping, Sequence

from andrea_export.core.errors import MismatchError
from andrea_export.judge.budget import keeps, relation_of
from andrea_export.judge.policy import Policy
from andrea_export.report.schema import ErrorName, LanguageModelRow, LayerRow, Number, RatchetRow, Relation, Report

Figures = dict[tuple[str, str, ErrorName], tuple[Mapping[str, Number], Mapping[str, float]]]

_BEST_IS_ONE = ("cosine", "top1_agreement", "top5_overlap")


def ratchet_rows(
    layers: Sequence[LayerRow], language: Sequence[LanguageModelRow], baseline: Report, policy: Policy
) -> Iterator[RatchetRow]:
    """One row for every held figure that both reports have.

    Raises: MismatchError where they have none in common, or the baseline has a figure that is no longer measured.
    """
    ours, theirs = _figures(layers, language), _figures(baseline.layers, baseline.language_model)
    common = [key for key in ours if key in theirs]
    if not common:
        raise MismatchError(
            "the baseline has no candidate and layer in common with this comparison",
            hint=f"its candidates are {', '.join(candidate.name for candidate in baseline.candidates)}",
        )
    lost = [key for key in theirs if key not in ours and key[0] in {candidate for candidate, _, _ in ours}]
    if lost:
        candidate, name, error = lost[0]
        raise MismatchError(
            f"the baseline has {len(lost)} figures that were not measured this time: {name} of {candidate}, {error}",
            hint="compare in the same way, or make a new baseline",
        )
    for key in common:
        metrics, budget = ours[key]
        before = theirs[key][0]
        for metric in policy.ratchet.metrics:
            if metric in metrics and metric in before:
                yield _row(key, metric, float(before[metric]), float(metrics[metric]), budget, policy)


def _row(
    key: tuple[str, str, ErrorName],
    metric: str,
    before: float,
    obtained: float,
    budget: Mapping[str, float],
    policy: Policy,
) -> RatchetRow:
    relation = relation_of(metric)
    limit = _limit(metric, relation, before, policy.ratchet.max_worsening)
    ignored = relation == "at most" and metric in budget and obtained <= policy.ratchet.ignore_below * budget[metric]
    candidate, name, error = key
    return RatchetRow(
        candidate=candidate,
        name=name,
        error=error,
        metric=metric,
        relation=relation,
        baseline=before,
        limit=limit,
        obtained=obtained,
        verdict="pass" if ignored or keeps(obtained, limit, relation) else "fail",
    )


def _limit(metric: str, relation: Relation, before: float, worsening: float) -> float:
    if relation == "at most":
        return before * (1.0 + worsening)
    if metric in _BEST_IS_ONE:
        return 1.0 - (1.0 - before) * (1.0 + worsening)
    return before * (1.0 - worsening)


def _figures(layers: Sequence[LayerRow], language: Sequence[LanguageModelRow]) -> Figures:
    figures: Figures = {}
    for row in layers:
        if row.metrics:
            figures[row.candidate, row.name, "accumulated"] = (row.metrics, row.budget)
        if row.local is not None and row.local.metrics:
            figures[row.candidate, row.name, "local"] = (row.local.metrics, row.local.budget)
    for case in language:
        if case.metrics:
            figures[case.candidate, case.case, "language model"] = (case.metrics, case.budget)
    return figures
