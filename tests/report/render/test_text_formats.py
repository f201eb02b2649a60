"""Markdown, JSON, the terminal view, and the words they share."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from andrea_export.report.file import report_as_json
from andrea_export.report.render import FORMATS, render
from andrea_export.report.render.markdown import MAX_CHARACTERS
from andrea_export.report.render.terminal import (
    MAX_FINDINGS,
    Screen,
    failure_lines,
    proof_lines,
    report_lines,
    verdict_line,
)
from andrea_export.report.render.wording import figure, findings, headline, share_of_limit
from andrea_export.report.schema import Check, Report
from support.synthetic_report import FAULTY_CANDIDATE, synthetic_report


def test_json_is_the_reports_own(failing: Report) -> None:
    assert render(failing, "json") == report_as_json(failing)


@pytest.mark.parametrize("kind", FORMATS)
def test_the_same_report_gives_the_same_bytes(kind: str, failing: Report) -> None:
    assert render(failing, kind) == render(failing, kind)  # type: ignore[arg-type]


def test_the_headline_names_the_layer_its_figure_and_its_limit(failing: Report) -> None:
    row = next(row for row in failing.layers if (row.name, row.candidate) == ("blocks.1.mlp.gelu", FAULTY_CANDIDATE))
    assert row.local is not None
    said = headline(failing)
    assert said.startswith("blocks.1.mlp.gelu is the first layer at fault: local max_abs ")
    assert figure(row.local.metrics["max_abs"]) in said and figure(row.local.budget["max_abs"]) in said
    assert said.endswith(f"in {FAULTY_CANDIDATE}")


def test_the_headline_of_a_failed_check_and_of_nothing_measured(passing: Report) -> None:
    check = Check(name="weights", verdict="fail", detail="one parameter is not the model's", layer="blocks.0.mlp.fc")
    assert headline(replace(passing, checks=(check,))) == (
        "blocks.0.mlp.fc is the first layer at fault: one parameter is not the model's"
    )
    nothing = replace(passing, candidates=passing.candidates[2:], layers=(), language_model=(), checks=(), ratchet=())
    assert headline(nothing) == "nothing could be measured: needs a GPU"
    strict = replace(passing, policy={**passing.policy, "not_measured": "fail"})
    absent = replace(passing.candidates[0], name="engine", verdict="not-measured", reason="needs a GPU")
    partly = replace(strict, candidates=(*passing.candidates, absent))
    assert partly.verdict == "fail"
    assert headline(partly).endswith("within budget, but not all could be measured: needs a GPU")


def test_what_is_at_fault_comes_before_what_inherits_it(failing: Report) -> None:
    found = findings(failing)
    assert [found[0].where, found[0].error] == ["blocks.1.mlp.gelu", "local"]
    accumulated = [finding.where for finding in found if finding.error == "accumulated"]
    assert accumulated == sorted(accumulated, key=failing.layer_order.index)
    inherited = {finding.where for finding in found if finding.inherited}
    assert inherited == set(accumulated) - {"blocks.1.mlp.gelu"}
    assert {finding.where for finding in found if finding.error == "local"} == {"blocks.1.mlp.gelu"}


def test_where_no_layers_own_error_was_measured_the_first_is_shown_and_what_comes_after_folded(failing: Report) -> None:
    bare = replace(failing, layers=tuple(replace(row, local=None) for row in failing.layers))
    shown = {finding.where for finding in findings(bare) if finding.error == "accumulated" and not finding.inherited}
    assert shown == {"blocks.1.mlp.gelu"}


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0"), (12_288, "12,288"), (0.104, "0.104"), (1.2345e-7, "1.23e-07"), (math.inf, "inf"), (math.nan, "nan")],
)
def test_figures(value: float, said: str) -> None:
    assert figure(value) == said


@pytest.mark.parametrize(
    ("obtained", "limit", "higher", "share"),
    [(1.0, 4.0, False, 0.25), (0.0, 0.0, False, 0.0), (1e-9, 0.0, False, math.inf), (math.nan, 1.0, False, math.inf),
     (0.5, 1.0, True, 2.0), (1.0, 0.5, True, 0.5)],
)  # fmt: skip
def test_shares_of_a_limit(obtained: float, limit: float, higher: bool, share: float) -> None:
    assert share_of_limit(obtained, limit, higher_is_better=higher) == share


def test_the_terminal_says_the_verdict_first_and_the_html_last(failing: Report) -> None:
    lines = list(report_lines(failing, "bundle", html=Path("out/report.html")))
    assert lines[0].startswith("FAIL bundle: blocks.1.mlp.gelu is the first layer at fault: ")
    assert lines[-1] == "report: out/report.html"


def test_a_layer_that_fails_in_its_own_error_alone_is_shown_as_expected_and_obtained(failing: Report) -> None:
    """Its accumulated error keeps its budget: a later layer, or the next case, may make up for it."""
    row = next(row for row in failing.layers if (row.name, row.candidate) == ("blocks.1.mlp.gelu", FAULTY_CANDIDATE))
    assert row.local is not None and row.local.failures
    kept = replace(row, failures=(), metrics=dict.fromkeys(row.metrics, 0.0))
    passed = (replace(other, verdict="pass", failures=()) for other in failing.layers if other is not row)
    report = replace(failing, layers=(*passed, kept))
    assert verdict_line(report, "bundle") == "FAIL bundle: the first layer at fault is blocks.1.mlp.gelu"
    header, *rows = list(failure_lines(report))[-1 - len(row.local.failures) :]
    assert header.split() == ["layer", "or", "case", "error", "metric", "expected", "obtained"]
    limits = [[figure(limit), figure(row.local.metrics[name])] for name, limit in row.local.budget.items()]
    assert rows and [line.split()[:2] for line in rows] == [["blocks.1.mlp.gelu", "local"]] * len(rows)
    assert all(line.split()[-2:] in limits for line in rows)
    assert set(failure_lines(report)) <= set(report_lines(report, "bundle"))


def test_a_failure_that_is_not_a_figure_is_a_sentence(passing: Report) -> None:
    gone = replace(passing.layers[3], verdict="fail", metrics={}, budget={}, local=None, problem="missing: no value")
    lines = list(failure_lines(replace(passing, layers=(gone, *passing.layers[4:]))))
    assert f"failed in {gone.candidate}: {gone.name}: missing: no value" in lines


def test_what_a_candidate_was_not_measured_on_is_named_with_its_reason(passing: Report) -> None:
    case = replace(passing.language_model[0], verdict="not-measured", metrics={}, failures=(), reason="it is too long")
    lines = list(proof_lines(replace(passing, language_model=(case,))))
    assert "not measured: tensorrt-rtx-fp16: needs a GPU" in lines
    assert f"not measured: {case.case} of {case.candidate}: it is too long" in lines


def test_the_worst_figure_may_be_a_layers_own_error(passing: Report) -> None:
    candidate = passing.candidates[0].name
    row = next(row for row in passing.layers if row.candidate == candidate and row.local is not None)
    assert row.local is not None
    metric, limit = next(iter(row.local.budget.items()))
    own = replace(row.local, metrics={**row.local.metrics, metric: 0.99 * limit})
    layers = tuple(replace(one, local=own) if one is row else one for one in passing.layers)
    said = "\n".join(proof_lines(replace(passing, layers=layers)))
    assert f"99%: local {metric}" in said and row.name in said
    assert f"0.99 (local {metric}, `{row.name}`)" in render(replace(passing, layers=layers), "markdown")


def test_the_terminals_table_is_in_model_order_with_failures_marked(failing: Report) -> None:
    lines = list(report_lines(failing, "bundle"))
    start = next(index for index, line in enumerate(lines) if line.startswith("layer "))
    table = lines[start + 1 : start + 1 + len(failing.layer_order)]
    assert [line.split()[0] for line in table] == list(failing.layer_order)
    marked = [line.split()[0] for line in table if line.endswith("FAIL")]
    assert marked == [row.name for row in failing.layers if row.verdict == "fail"]


def test_the_terminal_shows_expected_and_obtained_and_counts_the_rest(failing: Report) -> None:
    lines = list(report_lines(failing, "bundle"))
    first = findings(failing)[0]
    assert any(first.expected in line and first.obtained in line for line in lines)
    many = synthetic_report(num_blocks=12, faulty_layer="blocks.0.ln_1")
    assert f"and {len(findings(many)) - MAX_FINDINGS:,} more" in list(report_lines(many, "bundle"))


def test_the_terminal_colours_only_through_the_callers_paint(failing: Report, passing: Report) -> None:
    assert not any("\x1b" in line for line in report_lines(failing, "bundle"))
    painted = list(report_lines(passing, "bundle", screen=Screen(paint=lambda text, meaning: f"<{meaning}>{text}")))
    assert painted[0].startswith("<pass>PASS bundle: 46 layer comparisons within budget, 2 candidates; 1 not measured")


def test_markdown_states_verdict_candidates_and_figures(failing: Report) -> None:
    text = render(failing, "markdown")
    assert text.startswith("## ❌ Accuracy fail\n")
    assert f"| `{FAULTY_CANDIDATE}` | fp16 | ❌ fail |" in text
    assert "| ➖ not-measured: needs a GPU |" in text
    first = findings(failing)[0]
    assert (
        f"| `blocks.1.mlp.gelu` | {FAULTY_CANDIDATE} | local | max\\_abs | {first.expected} | {first.obtained} |"
        in text
    )


def test_markdown_fits_a_comment_however_large_the_report(failing: Report) -> None:
    many = synthetic_report(num_blocks=100, faulty_layer="blocks.0.ln_1")
    long = tuple(replace(row, name=f"{'x' * 3000}{row.name}") for row in many.layers)
    order = tuple(f"{'x' * 3000}{name}" for name in many.layer_order)
    for report in (many, replace(many, layers=long, layer_order=order)):
        assert len(render(report, "markdown")) <= MAX_CHARACTERS


def test_markdown_tables_survive_hostile_names(hostile: Report) -> None:
    lines = render(hostile, "markdown").splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("| failed |"))
    for line in lines[start : start + 10]:
        assert line.replace("\\|", "").count("|") == 7
        assert "<img" not in line.replace("`", "").replace("&lt;", "") or "`<img" in line


def test_html_is_one_small_file_that_names_nothing_outside(failing: Report) -> None:
    text = render(failing, "html")
    assert len(text.encode()) < 3_000_000
    assert '<link rel="stylesheet"' not in text and "<script src" not in text
    assert text.count("</script>") == 3 and "default-src 'none'" in text
    assert len(render(synthetic_report(num_blocks=50), "html").encode()) < 3_000_000


def test_figures_that_are_not_finite_reach_every_format(failing: Report) -> None:
    row = failing.layers[0]
    broken = replace(row, metrics={**row.metrics, "max_abs": math.inf, "num_nan": 3}, verdict="fail")
    report = replace(failing, layers=(broken, *failing.layers[1:]))
    for kind in FORMATS:
        text = render(report, kind)
        if kind == "html":
            start = text.index('id="page">') + len('id="page">')
            page = json.loads(text[start : text.index("</script>", start)])
            assert page["rows"][0]["metrics"][page["metricNames"].index("max_abs")] == "inf"


def test_the_charts_library_is_the_published_file_with_its_licence() -> None:
    import hashlib
    from importlib import resources

    assets = resources.files("andrea_export.report.render") / "assets"
    stated = (assets / "README.md").read_text(encoding="utf-8")
    library = (assets / "echarts.min.js").read_bytes()
    assert f"sha256 `{hashlib.sha256(library).hexdigest()}`" in stated
    assert b"Licensed to the Apache Software Foundation" in library[:400]
    assert "Apache License" in (assets / "echarts-LICENSE.txt").read_text(encoding="utf-8")
    assert "Apache ECharts" in (assets / "echarts-NOTICE.txt").read_text(encoding="utf-8")
