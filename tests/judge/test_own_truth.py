"""Rows with a truth of their own: judged where they were measured, and by no policy again, whatever they are called."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from andrea_export.judge.policy import Policy
from andrea_export.judge.verdicts import Terms, judged
from andrea_export.report.file import PLUGIN_MATHS, report_as_json, report_from_json
from andrea_export.report.schema import Candidate, LayerRow, Report

STRICT = Terms(policy=Policy(k=1e-9, k_reason="to see failures"))


def report_of(candidate: Candidate) -> Report:
    row = LayerRow(
        name="blocks.0.mlp.gelu",
        candidate=candidate.name,
        verdict="pass",
        metrics={"max_abs": 1.0, "relative_l2": 1.0, "num_values": 8},
        budget={"max_abs": 2.0, "relative_l2": 2.0},
        basis={"max_abs": 0.5, "mean_abs": 0.5, "relative_l2": 0.5},
        dtype="fp32",
    )
    return Report(
        reference={}, inputs={}, candidates=(candidate,), checks=(), layers=(row,), layer_order=("blocks.0.mlp.gelu",)
    )


def test_what_has_a_truth_of_its_own_is_left_as_it_was_judged() -> None:
    report = report_of(Candidate(name="anything", verdict="pass", has_own_truth=True))
    found = judged(report, STRICT)
    assert found.layers == report.layers and found.candidates == report.candidates


def test_a_name_exempts_nothing() -> None:
    found = judged(report_of(Candidate(name=f"{PLUGIN_MATHS}fp32", verdict="pass")), STRICT)
    assert found.layers[0].verdict == found.candidates[0].verdict == "fail"


def test_a_report_that_was_written_is_judged_as_it_was(tmp_path: Path) -> None:
    """The schema has no field for it: a reader takes it from the name, in reports of any age."""
    report = report_of(Candidate(name=f"{PLUGIN_MATHS}fp32", verdict="pass", has_own_truth=True))
    file = tmp_path / "report.json"
    file.write_text(report_as_json(report))
    assert "own_truth" not in file.read_text()
    assert report_from_json(file) == report
    named = replace(report, candidates=(replace(report.candidates[0], name="other"),))
    file.write_text(report_as_json(named))
    assert not report_from_json(file).candidates[0].has_own_truth
