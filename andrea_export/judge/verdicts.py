"""Verdicts: a policy over measured rows. The same code judges a comparison that just ran and a report read from a file.

A judged report has one outcome, its exit code, which is the same in every command. Measures nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from andrea_export.core.errors import PolicyError
from andrea_export.judge.budget import derived_budget, failures_of, formula
from andrea_export.judge.policy import Policy, policy_as_mapping
from andrea_export.judge.ratchet import ratchet_rows
from andrea_export.report.metrics import figures_of
from andrea_export.report.render.wording import Unmeasured, unmeasured
from andrea_export.report.schema import Candidate, LanguageModelRow, LayerRow, LocalError, Report, Verdict, is_at_fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a report is judged under: a policy, where it came from, and the baseline that it must not fall behind."""

    policy: Policy = field(default_factory=Policy)
    origin: Mapping[str, str] = field(default_factory=lambda: {"name": "default", "sha256": ""})
    baseline: Report | None = None


def judged(report: Report, terms: Terms) -> Report:
    """The report under a policy: budgets, failures, verdicts and ratchet all made anew from its figures.

    Raises: PolicyError where the policy names no layer or a budget has no basis; MismatchError for a baseline of
    something else.
    """
    policy = terms.policy
    policy.check_names(report.layer_order, dict.fromkeys(row.case for row in report.language_model))
    apart = {candidate.name for candidate in report.candidates if candidate.has_own_truth}
    _check_basis([row for row in report.layers if row.candidate not in apart], policy)
    layers = tuple(row if row.candidate in apart else judged_row(row, policy) for row in report.layers)
    language = tuple(judged_language(row, policy) for row in report.language_model)

    def of(candidate: Candidate) -> Candidate:
        if candidate.has_own_truth:
            return candidate
        mine = [row for row in layers if row.candidate == candidate.name]
        cases = [row for row in language if row.candidate == candidate.name]
        return judged_candidate(candidate, mine, cases, policy)

    held = ratchet_rows(layers, language, terms.baseline, policy) if terms.baseline is not None else ()
    return replace(
        report,
        layers=layers,
        language_model=language,
        candidates=tuple(of(candidate) for candidate in report.candidates),
        ratchet=tuple(held),
        policy=policy_as_mapping(policy, terms.origin),
        formula=formula(policy.k),
        metrics=figures_of(
            {name for row in layers for name in row.metrics} | {name for row in language for name in row.metrics}
        ),
    )


def judged_row(row: LayerRow, policy: Policy) -> LayerRow:
    """The row with the policy's budgets, failures and verdict. Raises PolicyError where a budget has no basis."""
    if not row.metrics:
        verdict: Verdict = "fail"
        if row.problem.startswith(("missing", "not measured")):
            verdict = policy.missing_layer(row.name, row.candidate)
        local = row.local and replace(row.local, verdict="not-measured")
        return replace(row, verdict=verdict, budget={}, failures=(), local=local)
    budget = policy.budget(row.name, row.candidate, "accumulated", row.basis)
    failures = failures_of(row.metrics, budget)
    local = judged_local(row, policy) if row.local is not None else None
    # What was measured in part has passed in part: a local error that could not be taken is the candidate's to answer.
    failed = bool(failures) or (local is not None and local.verdict == "fail")
    return replace(row, verdict="fail" if failed else "pass", budget=budget, failures=failures, local=local)


def judged_local(row: LayerRow, policy: Policy) -> LocalError:
    """The row's local error, judged."""
    assert row.local is not None
    if not row.local.metrics:
        return replace(row.local, verdict="not-measured")
    budget = policy.budget(row.name, row.candidate, "local", row.local.basis)
    failures = failures_of(row.local.metrics, budget)
    return replace(row.local, verdict="fail" if failures else "pass", budget=budget, failures=failures)


def judged_language(row: LanguageModelRow, policy: Policy) -> LanguageModelRow:
    """One case of the language model, judged; one without figures is not measured."""
    if not row.metrics:
        return replace(row, verdict="not-measured", budget={}, failures=())
    k, derived, limits = policy.language_model_rules(row.case, row.candidate)
    budget = derived_budget(row.metrics, k * row.basis["max_abs"]) if derived and "max_abs" in row.basis else {}
    budget.update({name: limit for name, limit in limits.items() if name in row.metrics})
    failures = failures_of(row.metrics, budget)
    return replace(row, verdict="fail" if failures else "pass", budget=budget, failures=failures)


def judged_candidate(
    candidate: Candidate, rows: Sequence[LayerRow], language: Sequence[LanguageModelRow], policy: Policy
) -> Candidate:
    """The candidate's verdict from its judged rows, and the first layer at fault.

    A candidate that was refused or could not be measured keeps its reason.
    """
    if candidate.verdict == "not-measured" and not rows:
        return candidate
    refused = str(candidate.facts.get("refused", ""))
    reasons = [refused] if refused else []
    failed = [row for row in rows if row.verdict == "fail"]
    if failed:
        reasons.append(f"{len(failed)} of {len(rows)} layers out of budget")
    if failed_cases := [row.case for row in language if row.verdict == "fail"]:
        reasons.append(f"language model out of budget: {', '.join(failed_cases)}")
    if not rows:
        reasons.append("no layer was compared")
    reasons += _not_measured(rows, language, policy)
    at_fault = next((row.name for row in failed if is_at_fault(row)), failed[0].name if failed else None)
    return replace(candidate, verdict="fail" if reasons else "pass", reason="; ".join(reasons), first_failure=at_fault)


def _not_measured(rows: Sequence[LayerRow], language: Sequence[LanguageModelRow], policy: Policy) -> list[str]:
    reasons = []
    cases = [row for row in language if row.verdict == "not-measured"]
    if cases and policy.not_measured == "fail":
        reasons.append(f"{len(cases)} cases of the language model not measured: {cases[0].reason}")
    unfed = [row for row in rows if row.local is not None and row.local.verdict == "not-measured" and not row.problem]
    if unfed and policy.local_not_measured == "fail":
        assert unfed[0].local is not None
        reasons.append(f"{len(unfed)} local errors not measured: {unfed[0].local.reason}")
    return reasons


def _check_basis(rows: Sequence[LayerRow], policy: Policy) -> None:
    """Raises PolicyError where a metric is to be judged by a derived budget that has nothing to derive from."""
    for row in rows:
        if not row.metrics:
            continue
        budget = policy.budget(row.name, row.candidate, "accumulated", row.basis)
        wanted = set(policy.metrics) if "accumulated" in policy.errors else set()
        if not wanted <= set(budget):
            raise PolicyError(
                f"layer {row.name} of {row.candidate} has nothing to derive budgets from",
                hint=f"set limits for its {', '.join(sorted(wanted))} in the policy",
            )


class ExitCode(IntEnum):
    """What a command that judges a report ends with."""

    PASSED = 0
    FAILED = 1
    NOT_MEASURED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a report came out."""

    code: ExitCode
    unmeasured: tuple[Unmeasured, ...]
    """Everything that was not measured, whatever the code: a pass does not speak for it either."""


def outcome(report: Report) -> Outcome:
    """PASSED where the verdict is pass; NOT_MEASURED where nothing failed and something was not measured; else FAILED.

    A report in which nothing failed, everything was measured and yet no candidate's logits were compared is FAILED.
    """
    absent = tuple(unmeasured(report))
    if report.verdict == "pass":
        code = ExitCode.PASSED
    elif absent and "fail" not in report.verdicts:
        code = ExitCode.NOT_MEASURED
    else:
        code = ExitCode.FAILED
    return Outcome(code=code, unmeasured=absent)
