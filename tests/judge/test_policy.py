"""Policies: what a file may say, how rules apply, and that a report is judged again by the same code."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from andrea_export.core.errors import MismatchError, PolicyError
from andrea_export.judge.budget import K
from andrea_export.judge.policy import (
    LanguageModelRule,
    LayerRule,
    Policy,
    Ratchet,
    policy_as_mapping,
    policy_from_mapping,
    policy_from_toml,
    policy_json_schema,
)
from andrea_export.judge.verdicts import Terms, judged
from andrea_export.report.file import report_as_json, report_from_json, report_json_schema
from andrea_export.report.schema import Candidate, LayerRow, Report
from support.paths import ROOT

SCHEMAS = ROOT / "andrea_export" / "schemas"
HEAD = 'schema = "andrea-export/policy/1"\n'

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_policy(content: str) -> Path:
        file = tmp_path / "policy.toml"
        file.write_text(content)
        return file

    return write_policy


def under(report: Report, policy: Policy, baseline: Report | None = None) -> Report:
    return judged(report, Terms(policy=policy, baseline=baseline))


def test_the_default_policy_judges_as_the_comparison_did(clean: Report) -> None:
    assert report_as_json(under(clean, Policy())) == report_as_json(clean)


def test_a_report_read_from_a_file_is_judged_the_same(clean: Report, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(report_as_json(clean))
    assert report_as_json(under(report_from_json(file), Policy())) == report_as_json(clean)


def test_budgets_are_k_times_the_basis(clean: Report) -> None:
    row = next(row for row in clean.layers if row.name == "blocks.1.mlp.fc")
    assert row.budget == {name: K * row.basis[name] for name in ("max_abs", "relative_l2")}
    tight = under(clean, Policy(k=0.01, k_reason="a test"))
    assert tight.verdict == "fail" and "0.01 x" in tight.formula and tight.policy["k_reason"] == "a test"


def test_a_rule_is_for_the_layers_candidates_and_errors_it_names(clean: Report) -> None:
    rule = LayerRule(layers=("blocks.*.mlp.gelu",), errors=("local",), limits={"max_abs": 0.0}, reason="a test")
    report = under(clean, Policy(layer=(rule,)))
    failed = [row.name for row in report.layers if row.verdict == "fail"]
    assert failed == ["blocks.0.mlp.gelu", "blocks.1.mlp.gelu"]
    assert report.first_failure == "blocks.0.mlp.gelu"
    row = next(row for row in report.layers if row.name == "blocks.0.mlp.gelu")
    assert row.failures == () and row.local is not None and row.local.failures[0].expected == 0.0
    elsewhere = replace(rule, candidates=("tensorrt*",))
    assert under(clean, Policy(layer=(elsewhere,))).verdict == "pass"


def test_the_later_rule_wins_key_by_key(clean: Report) -> None:
    first = LayerRule(layers=("*",), k=1e-6, limits={"cosine": 2.0}, reason="a test")
    second = LayerRule(layers=("*",), k=1e6, limits={"cosine": 0.5}, reason="a test")
    assert under(clean, Policy(layer=(first, second))).verdict == "pass"
    assert under(clean, Policy(layer=(second, first))).verdict == "fail"


def test_a_metric_that_is_better_when_higher_is_a_lower_limit(clean: Report) -> None:
    rule = LayerRule(layers=("logits",), limits={"cosine": 1.5}, reason="a test")
    row = next(row for row in under(clean, Policy(layer=(rule,))).layers if row.name == "logits")
    assert (row.failures[0].metric, row.failures[0].relation) == ("cosine", "at least")


def test_errors_left_out_are_shown_and_not_judged(clean: Report) -> None:
    rule = LayerRule(layers=("logits",), errors=("local",), limits={"max_abs": 0.0}, reason="a test")
    report = under(clean, Policy(errors=("accumulated",), layer=(rule,)))
    row = next(row for row in report.layers if row.name == "blocks.0.ln_1")
    assert row.local is not None and row.local.budget == {} and row.local.metrics
    assert under(clean, Policy(errors=("accumulated",))).verdict == "pass"


def test_nan_fails_whatever_the_policy_says(clean: Report) -> None:
    rows = tuple(replace(row, metrics={**row.metrics, "num_nan": 1}) for row in clean.layers)
    generous = Policy(errors=(), layer=(LayerRule(layers=("*",), limits={"max_abs": 1e9}, reason="a test"),))
    report = under(replace(clean, layers=rows), generous)
    assert report.verdict == "fail" and report.first_failure == clean.layer_order[0]


@pytest.mark.parametrize(("missing", "verdict"), [("fail", "fail"), ("pass", "pass"), ("not-measured", "pass")])
def test_what_a_missing_layer_counts_as_is_the_policys_to_say(clean: Report, missing: str, verdict: str) -> None:
    gone = LayerRow(
        name="blocks.0.mlp.fc",
        candidate="onnxruntime-cpu",
        verdict="fail",
        metrics={},
        budget={},
        problem="missing: no",
    )
    rows = tuple(gone if row.name == gone.name else row for row in clean.layers)
    report = under(replace(clean, layers=rows), Policy(missing=missing))  # type: ignore[arg-type]
    assert report.verdict == verdict
    assert next(row for row in report.layers if row.name == gone.name).verdict == missing


def test_a_wrong_shape_fails_whatever_counts_as_missing(clean: Report) -> None:
    wrong = LayerRow(
        name="ln_f", candidate="onnxruntime-cpu", verdict="fail", metrics={}, budget={}, problem="has shape [1]"
    )
    rows = tuple(wrong if row.name == wrong.name else row for row in clean.layers)
    assert under(replace(clean, layers=rows), Policy(missing="pass")).verdict == "fail"


def test_not_measured_passes_only_where_the_policy_says_so(clean: Report) -> None:
    engine = Candidate(name="tensorrt-rtx-fp16", verdict="not-measured", reason="needs a GPU")
    report = replace(clean, candidates=(*clean.candidates, engine))
    assert under(report, Policy()).verdict == "fail"
    assert under(report, Policy(not_measured="pass")).verdict == "pass"
    alone = replace(clean, candidates=(engine,), layers=(), language_model=())
    assert under(alone, Policy(not_measured="pass")).verdict == "fail"  # nothing at all was measured


def test_a_local_error_that_could_not_be_taken_passes_unless_the_policy_says_otherwise(clean: Report) -> None:
    rows = tuple(
        replace(row, local=row.local and replace(row.local, metrics={}, reason="cannot be fed")) for row in clean.layers
    )
    report = replace(clean, layers=rows)
    assert under(report, Policy()).verdict == "pass"
    strict = under(report, Policy(local_not_measured="fail"))
    assert strict.verdict == "fail" and "cannot be fed" in strict.candidates[0].reason


def test_rules_for_the_language_model(clean: Report) -> None:
    rule = LanguageModelRule(
        cases=("context *",), derived=False, limits={"top1_agreement": 1.5, "kl_mean": 1.0}, reason="a test"
    )
    report = under(clean, Policy(language_model=(rule,)))
    failed = {row.case: row for row in report.language_model if row.verdict == "fail"}
    assert set(failed) == {"context 1", "context 2", "context 128"}
    assert failed["context 1"].budget == {"top1_agreement": 1.5, "kl_mean": 1.0}
    assert "language model out of budget" in report.candidates[0].reason


# --- the ratchet ------------------------------------------------------------------------------------------------


def test_a_report_is_no_worse_than_itself(clean: Report) -> None:
    report = under(clean, Policy(), clean)
    assert report.verdict == "pass" and len(report.ratchet) > 100
    assert {row.error for row in report.ratchet} == {"accumulated", "local", "language model"}


def test_one_metric_that_worsened_fails_with_both_figures(clean: Report) -> None:
    def better(row: LayerRow) -> LayerRow:
        if row.name != "ln_f":
            return row
        return replace(row, metrics={**row.metrics, "max_abs": row.metrics["max_abs"] / 2})

    before = replace(clean, layers=tuple(better(row) for row in clean.layers))
    report = under(clean, Policy(ratchet=Ratchet(max_worsening=0.5)), before)
    failed = [row for row in report.ratchet if row.verdict == "fail"]
    assert [(row.name, row.error, row.metric) for row in failed] == [("ln_f", "accumulated", "max_abs")]
    assert failed[0].limit == pytest.approx(1.5 * failed[0].baseline) and report.verdict == "fail"
    assert under(clean, Policy(ratchet=Ratchet(max_worsening=1.0)), before).verdict == "pass"
    assert under(clean, Policy(ratchet=Ratchet(max_worsening=0.5, ignore_below=1.0)), before).verdict == "pass"


def test_agreement_is_held_by_its_distance_from_one(clean: Report) -> None:
    rows = tuple(replace(row, metrics={**row.metrics, "top1_agreement": 0.98}) for row in clean.language_model[:1])
    earlier = tuple(replace(row, metrics={**row.metrics, "top1_agreement": 0.99}) for row in rows)
    before = replace(clean, language_model=earlier)
    now = replace(clean, language_model=rows)
    limits = {
        row.limit for row in under(now, Policy(ratchet=Ratchet(max_worsening=0.5)), before).ratchet
        if row.metric == "top1_agreement"
    }  # fmt: skip
    assert list(limits) == [pytest.approx(0.985)]


def test_a_baseline_of_something_else_is_refused(clean: Report) -> None:
    other = replace(clean, layers=tuple(replace(row, candidate="other") for row in clean.layers), language_model=())
    with pytest.raises(MismatchError, match="no candidate and layer in common"):
        under(clean, Policy(), other)


def test_a_figure_the_baseline_has_and_this_report_has_not_is_refused(clean: Report) -> None:
    with pytest.raises(MismatchError, match="not measured this time"):
        under(replace(clean, language_model=()), Policy(), clean)


# --- the file ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "schema is None"),
        ('schema = "andrea-export/policy/9"', "policy/9"),
        ("schema = ", "is not TOML"),
        ("a = " + "[" * 5000, "is not TOML"),
        ("a = " + "9" * 5000, "is not TOML"),
        (HEAD + "kk = 3.0", "unknown key 'kk'"),
        (HEAD + "k = -1.0\nk_reason = 'x'", "k: input should be greater than 0, got -1.0"),
        (HEAD + "k = nan\nk_reason = 'x'", "k: input should be"),
        (HEAD + "k = 8.0", "k_reason must say why"),
        (HEAD + "missing = 'ok'", "missing: input should be 'fail'"),
        (HEAD + "metrics = ['max_ulp']", "metrics.1: input should be 'max_abs'"),
        (HEAD + "[[layer]]\nlayers = ['*']", "layer.1.reason is missing"),
        (HEAD + "[[layer]]\nlayers = []\nreason = 'x'", "layer.1.layers"),
        (HEAD + "[[layer]]\nlayers = ['*']\nreason = 'x'\nlimits = {maxabs = 1.0}", "unknown metric maxabs"),
        (HEAD + "[[language_model]]\ncases = ['*']\nreason = 'x'\nlimits = {cosine = 1.0}", "unknown metric cosine"),
        (HEAD + "[ratchet]\nmetrics = ['num_values']", "unknown metric num_values"),
    ],
)
def test_what_is_wrong_in_a_policy_is_named(write: Write, content: str, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        policy_from_toml(write(content))
    assert message in str(caught.value) and "policy.toml" in str(caught.value)


def test_every_wrong_key_is_named_at_once(write: Write) -> None:
    with pytest.raises(PolicyError, match=r"unknown key 'a'.*unknown key 'b'"):
        policy_from_toml(write(HEAD + "a = 1\nb = 2"))


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Policy(layer=(LayerRule(layers=("blocks.*.mlp.gellu",), reason="x"),)), "layer rule 1: 'blocks.*.mlp.gellu'"),
        (Policy(layer=(LayerRule(layers=("logits", "blocks.9.*"), reason="x"),)), "'blocks.9.*' names no layer"),
        (Policy(language_model=(LanguageModelRule(cases=("context 7",), reason="x"),)), "'context 7' names no case"),
    ],
)
def test_a_policy_that_names_nothing_is_refused(clean: Report, policy: Policy, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        under(clean, policy)
    assert message in str(caught.value)


def test_a_budget_without_a_basis_is_refused_rather_than_left_out(clean: Report) -> None:
    rows = tuple(replace(row, basis={}) for row in clean.layers)
    with pytest.raises(PolicyError, match="nothing to derive budgets from"):
        under(replace(clean, layers=rows), Policy())
    limits = LayerRule(layers=("*",), limits={"max_abs": 1.0, "relative_l2": 1.0}, reason="a test")
    loose = replace(clean, layers=tuple(replace(row, basis={}, local=None) for row in clean.layers))
    assert under(loose, Policy(layer=(limits,))).verdict == "pass"


def test_a_policy_survives_its_report(write: Write) -> None:
    policy, origin = policy_from_toml(
        write(HEAD + "k = 8.0\nk_reason = 'x'\n[[layer]]\nlayers = ['*']\nreason = 'y'\nk = 2.0")
    )
    mapping = json.loads(json.dumps(policy_as_mapping(policy, origin)))
    assert mapping["name"] == "policy.toml" and len(mapping["sha256"]) == 64
    assert policy_from_mapping(mapping) == policy


# --- schemas ----------------------------------------------------------------------------------------------------


def test_the_shipped_schemas_are_those_of_the_code() -> None:
    """Written by scripts/write_schemas.py."""
    assert json.loads((SCHEMAS / "report-2.json").read_text()) == report_json_schema()
    assert json.loads((SCHEMAS / "policy-1.json").read_text()) == policy_json_schema()


def test_a_report_is_valid_by_its_schema_and_a_changed_one_is_not(clean: Report) -> None:
    schema = json.loads((SCHEMAS / "report-2.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    document = json.loads(report_as_json(clean))
    validator.validate(document)
    infinite = replace(
        clean, layers=(replace(clean.layers[0], metrics={**clean.layers[0].metrics, "max_abs": math.inf}),)
    )
    validator.validate(json.loads(report_as_json(infinite)))
    for broken in (
        {**document, "verdict": "ok"},
        {**document, "extra": 1},
        {**document, "layers": [{**document["layers"][0], "metrics": {"max_abs": "small"}}]},
        {key: value for key, value in document.items() if key != "layers"},
    ):
        assert not validator.is_valid(broken)


def test_policies_are_valid_by_their_schema(write: Write) -> None:
    schema = json.loads((SCHEMAS / "policy-1.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid({"schema": "andrea-export/policy/1", "k": 8.0, "k_reason": "x"})
    for broken in ({}, {"schema": "x"}, {"schema": "andrea-export/policy/1", "kk": 1}):
        assert not validator.is_valid(broken)


def test_the_policies_in_the_documentation_are_valid(write: Write, clean: Report) -> None:
    page = (ROOT / "docs" / "guides" / "comparing.md").read_text()
    blocks = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        policy, _ = policy_from_toml(write(block))
        policy.check_names(clean.layer_order, {row.case for row in clean.language_model})


def test_every_key_of_a_policy_is_documented() -> None:
    schema = policy_json_schema()
    described = {**schema["properties"]}
    for name in ("LayerRule", "LanguageModelRule", "Ratchet"):
        described.update({f"{name}.{key}": value for key, value in schema["$defs"][name]["properties"].items()})
    assert [key for key, value in described.items() if not value.get("description")] == []
    page = (ROOT / "docs" / "reference" / "policy.md").read_text()
    assert [key for key in described if f"`{key.rpartition('.')[2]}`" not in page] == []
