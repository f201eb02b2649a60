"""JUnit XML: valid by the schema CI servers use, one case for every layer × error × metric, failures with values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lxml import etree

from andrea_export.report.render import render
from andrea_export.report.schema import Report
from support.synthetic_report import FAULTY_CANDIDATE

SCHEMA = etree.XMLSchema(etree.parse(Path(__file__).with_name("junit.xsd")))


def parsed(report: Report) -> etree._Element:
    document = etree.fromstring(render(report, "junit").encode())
    SCHEMA.assertValid(document)
    return document


def case_names(document: etree._Element, suite: str) -> list[str]:
    return [str(name) for name in document.xpath(f'testsuite[@name="{suite}"]/testcase/@name')]


@pytest.mark.parametrize("kind", ["failing", "passing", "hostile"])
def test_it_is_valid(kind: str, request: pytest.FixtureRequest) -> None:
    parsed(request.getfixturevalue(kind))


def test_the_schema_refuses_what_ci_servers_refuse(failing: Report) -> None:
    document = parsed(failing)
    document[0].attrib.pop("tests")
    assert not SCHEMA.validate(document)
    again = parsed(failing)
    first = again.xpath("testsuite/testcase")[0]
    first.getparent().append(first.__copy__())
    assert not SCHEMA.validate(again)


def test_every_judged_figure_is_a_case(failing: Report) -> None:
    names = case_names(parsed(failing), FAULTY_CANDIDATE)
    for row in failing.layers:
        if row.candidate == FAULTY_CANDIDATE:
            for error, budget in (("accumulated", row.budget), ("local", row.local.budget if row.local else {})):
                for metric in (*budget, "num_nan", "num_inf"):
                    assert f"{row.name} {error} {metric}" in names


def test_failures_carry_the_values(failing: Report) -> None:
    document = parsed(failing)
    row = next(row for row in failing.layers if (row.name, row.candidate) == ("logits", FAULTY_CANDIDATE))
    (failure,) = document.xpath(
        f'testsuite[@name="{FAULTY_CANDIDATE}"]/testcase[@name="logits accumulated max_abs"]/failure'
    )
    assert failure.get("type") == "max_abs"
    assert failure.get("message").startswith("expected ≤ ")
    assert repr(row.metrics["max_abs"]) in failure.text and repr(row.budget["max_abs"]) in failure.text
    assert "worst element: prefill [" in failure.text
    assert document.xpath('testsuite/testcase[@name="logits local max_abs"]/failure') == []


def test_counts_are_those_of_the_cases(failing: Report) -> None:
    document = parsed(failing)
    for suite in document:
        assert int(suite.get("tests")) == len(suite.findall("testcase"))
        assert int(suite.get("failures")) == len(suite.findall("testcase/failure"))
        assert int(suite.get("skipped")) == len(suite.findall("testcase/skipped"))
    for count in ("tests", "failures", "skipped"):
        assert int(document.get(count)) == sum(int(suite.get(count)) for suite in document)


def test_ci_fails_exactly_where_the_report_does(failing: Report, passing: Report) -> None:
    assert int(parsed(passing).get("failures")) == 0
    assert int(parsed(failing).get("failures")) > 0
    unmeasured = replace(passing, candidates=passing.candidates[2:], layers=(), language_model=(), ratchet=())
    assert unmeasured.verdict == "fail"
    assert int(parsed(unmeasured).get("failures")) == 1  # the verdict itself: nothing was measured


def test_not_measured_is_skipped_with_its_reason(failing: Report) -> None:
    (skipped,) = parsed(failing).xpath('testsuite[@name="tensorrt-rtx-fp16"]/testcase/skipped')
    assert skipped.get("message") == "needs a GPU"


def test_a_missing_layer_is_one_failed_case(passing: Report) -> None:
    missing = replace(
        passing.layers[0], verdict="fail", metrics={}, budget={}, local=None, problem="missing: no such layer \x00"
    )
    document = parsed(replace(passing, layers=(missing, *passing.layers[1:])))
    (failure,) = document.xpath('testsuite[@name="onnxruntime-cpu"]/testcase/failure')
    assert failure.get("message") == "missing: no such layer \N{REPLACEMENT CHARACTER}"  # XML holds no NUL
