"""The example report in docs: what it says, that its formats are one report, and that nothing of a machine is in it."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest

from andrea_export.report.file import report_from_json
from andrea_export.report.render import render
from andrea_export.report.schema import Report
from support.paths import ROOT

EXAMPLE = ROOT / "docs" / "example"
FILES = {"html": "report.html", "markdown": "report.md", "junit": "junit.xml", "json": "report.json"}


@pytest.fixture(scope="module")
def report() -> Report:
    return report_from_json(EXAMPLE / "report.json")


def test_it_names_the_planted_layer_and_passes_the_sound_graph(report: Report) -> None:
    assert (report.verdict, report.first_failure) == ("fail", "blocks.2.mlp.gelu")
    assert {candidate.name: candidate.verdict for candidate in report.candidates} == {
        "as-exported": "pass",
        "erf-for-tanh": "fail",
    }
    perplexities = [row.metrics["perplexity_reference"] for row in report.language_model if row.case == "context 1024"]
    assert len(perplexities) == 2 and all(value < 20 for value in perplexities)  # chance is 257


@pytest.mark.parametrize("kind", FILES)
def test_its_formats_are_those_of_this_version(report: Report, kind: str) -> None:
    """Where this fails the example is to be made again: python scripts/example_report.py."""
    assert (EXAMPLE / FILES[kind]).read_text(encoding="utf-8") == render(report, kind)


def test_it_keeps_the_schema_and_holds_no_path() -> None:
    text = (EXAMPLE / "report.json").read_text(encoding="utf-8")
    schema = json.loads((ROOT / "andrea_export" / "schemas" / "report-2.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads(text), schema)
    assert re.findall(r"\"[^\"]*(?:/home/|/tmp/|/root/|/work/|\\\\)[^\"]*\"", text) == []
    assert (EXAMPLE / "report.html").stat().st_size < 3_000_000
