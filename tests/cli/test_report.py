"""``andrea-export report``: every format, to stdout and to a file, and every bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from andrea_export.report.file import report_as_json
from andrea_export.report.render import FORMATS, render
from support.synthetic_report import synthetic_report


@pytest.fixture
def report_file(tmp_path: Path) -> Path:
    path = tmp_path / "report.json"
    path.write_text(report_as_json(synthetic_report()), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", FORMATS)
def test_a_format_goes_to_stdout(andrea: Any, report_file: Path, kind: Any) -> None:
    outcome = andrea("report", report_file, "--format", kind)
    assert outcome.code == 0
    assert outcome.stdout == render(synthetic_report(), kind)


def test_a_file_is_written_whole_and_named_on_stderr(andrea: Any, report_file: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    outcome = andrea("report", report_file, "--output", page)
    assert (outcome.code, outcome.stdout) == (0, "")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert str(page) in outcome.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "report.json"]


@pytest.mark.parametrize(
    ("content", "said"),
    [("", "is not JSON"), ("[]", "is not a report"), ('{"schema": "andrea-export/report/99"}', "report/99"),
     ('{"schema": "andrea-export/report/2"}', "is damaged")],
)  # fmt: skip
def test_what_is_no_report_is_one_line(andrea: Any, tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(content)
    outcome = andrea("report", file, "--format", "markdown", "--output", tmp_path / "out.md")
    assert outcome.code == 2
    assert said in outcome.error
    assert not (tmp_path / "out.md").exists()


def test_a_missing_file_an_unknown_format_and_a_folder(andrea: Any, report_file: Path, tmp_path: Path) -> None:
    assert andrea("report", tmp_path / "none.json").code == 2
    assert andrea("report", report_file, "--format", "pdf").code == 2
    outcome = andrea("report", report_file, "--output", tmp_path)
    assert outcome.code == 2 and "is a folder" in outcome.error
