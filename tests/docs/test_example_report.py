"""The example report that a script makes: what it says, that its formats are one report, and that no path is in it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest

from andrea_export.report.file import report_from_json
from andrea_export.report.render import render
from andrea_export.report.schema import Report
from support.paths import ROOT

FILES = {"html": "report.html", "markdown": "report.md", "junit": "junit.xml", "json": "report.json"}


@pytest.fixture(scope="module")
def report(example: Path) -> Report:
    return report_from_json(example / "report.json")


def test_it_names_the_planted_layer_and_passes_the_sound_graph(report: Report) -> None:
    assert (report.verdict, report.first_failure) == ("fail", "blocks.2.mlp.gelu")
    assert {candidate.name: candidate.verdict for candidate in report.candidates} == {
        "as-exported": "pass",
        "erf-for-tanh": "fail",
    }
    perplexities = [row.metrics["perplexity_reference"] for row in report.language_model if row.case == "context 1024"]
    assert len(perplexities) == 2 and all(value < 20 for value in perplexities)  # chance is 257


@pytest.mark.parametrize("kind", FILES)
def test_its_formats_are_one_report(example: Path, report: Report, kind: str) -> None:
    """What was written is what the file, read again, renders to."""
    assert (example / FILES[kind]).read_text(encoding="utf-8") == render(report, kind)


def test_it_keeps_the_schema_and_holds_no_path(example: Path) -> None:
    text = (example / "report.json").read_text(encoding="utf-8")
    schema = json.loads((ROOT / "andrea_export" / "schemas" / "report-2.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads(text), schema)
    assert re.findall(r"\"[^\"]*(?:/home/|/tmp/|/root/|/work/|\\\\)[^\"]*\"", text) == []
    assert (example / "report.html").stat().st_size < 3_000_000
