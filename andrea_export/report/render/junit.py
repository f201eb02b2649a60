"""A report as JUnit XML, as CI servers read it: a suite a candidate, a test case for every layer × error × metric.

The dialect is the one Jenkins' xUnit plugin, GitLab and GitHub's test reporters share, which
``tests/report/render/junit.xsd`` states. No times: nothing here measures one.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as etree

from andrea_export.report.render.wording import (
    figure,
    headline,
    is_higher_better,
    limit_as_text,
    reference_as_text,
    rows_of,
)
from andrea_export.report.schema import Candidate, Failure, LayerRow, Metric, Report, Verdict

# XML 1.0 has no way to write these, not even as a reference.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_COUNTS = ("num_nan", "num_inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One test case: what it is called, and why it failed or was skipped."""

    name: str
    verdict: Verdict
    kind: str = ""
    message: str = ""
    detail: str = ""


def report_as_junit(report: Report) -> str:
    """The report as a JUnit XML document; it fails in CI exactly where the report's verdict is fail."""
    suites = [(candidate.name, list(_candidate_cases(report, candidate))) for candidate in report.candidates]
    checks = [
        _Case(name=check.name, verdict=check.verdict, kind="check", message=check.detail) for check in report.checks
    ]
    verdict = _Case(name="report", verdict=report.verdict, kind="verdict", message=headline(report))
    root = etree.Element("testsuites", name="andrea-export")
    totals = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for name, cases in [("verdict", [verdict, *checks]), *suites]:
        for key, value in _add_suite(root, name, cases, report).items():
            totals[key] += value
    root.attrib.update({key: str(value) for key, value in totals.items()})
    etree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + etree.tostring(root, encoding="unicode") + "\n"


def _add_suite(root: etree.Element, name: str, cases: Sequence[_Case], report: Report) -> dict[str, int]:
    """Appends a suite and returns its counts."""
    totals = {
        "tests": len(cases),
        "failures": sum(case.verdict == "fail" for case in cases),
        "errors": 0,
        "skipped": sum(case.verdict == "not-measured" for case in cases),
    }
    suite = etree.SubElement(root, "testsuite", name=_xml(name))
    suite.attrib.update({key: str(value) for key, value in totals.items()})
    properties = etree.SubElement(suite, "properties")
    etree.SubElement(properties, "property", name="reference", value=_xml(reference_as_text(report)))
    for case in cases:
        element = etree.SubElement(suite, "testcase", classname=_xml(f"andrea-export.{name}"), name=_xml(case.name))
        if case.verdict == "fail":
            failure = etree.SubElement(element, "failure", type=_xml(case.kind), message=_xml(case.message))
            failure.text = _xml(case.detail or case.message)
        elif case.verdict == "not-measured":
            etree.SubElement(element, "skipped", message=_xml(case.message))
    return totals


def _candidate_cases(report: Report, candidate: Candidate) -> Iterator[_Case]:
    rows = rows_of(report, candidate.name)
    language_model = [row for row in report.language_model if row.candidate == candidate.name]
    # Without rows the candidate's own verdict is all there is; with them it says whether they are all there should be.
    own = candidate.reason or ("not measured" if candidate.verdict == "not-measured" else "see its layers")
    yield _Case(name="candidate", verdict=candidate.verdict, kind="candidate", message=own)
    for row in rows:
        yield from _layer_cases(row, report.metrics)
    for lm in language_model:
        name = f"language model {lm.case}"
        if lm.verdict == "not-measured":
            yield _Case(name=name, verdict="not-measured", message=lm.reason)
            continue
        yield from _metric_cases(name, lm.metrics, lm.budget, lm.failures, report.metrics)
        if lm.verdict == "fail" and not lm.failures:
            yield _Case(name=name, verdict="fail", kind="language model", message=lm.reason or "failed")
    for entry in report.ratchet:
        if entry.candidate == candidate.name:
            yield _Case(
                name=f"ratchet {entry.name} {entry.error} {entry.metric}",
                verdict=entry.verdict,
                kind="ratchet",
                message=f"expected {limit_as_text(entry.as_failure)} (baseline {figure(entry.baseline)}), "
                f"obtained {figure(entry.obtained)}",
            )


def _layer_cases(row: LayerRow, table: Mapping[str, Metric]) -> Iterator[_Case]:
    if row.problem:
        yield _Case(name=f"{row.name} present", verdict="fail", kind="layer", message=row.problem)
        return
    worst = "" if row.worst is None else (
        f"\nworst element: {row.worst.case} {list(row.worst.index)}: "
        f"expected {row.worst.reference!r}, obtained {row.worst.candidate!r}"
    )  # fmt: skip
    yield from _metric_cases(f"{row.name} accumulated", row.metrics, row.budget, row.failures, table, worst)
    if row.local is None:
        return
    if row.local.verdict == "not-measured":
        yield _Case(name=f"{row.name} local", verdict="not-measured", message=row.local.reason)
        return
    yield from _metric_cases(f"{row.name} local", row.local.metrics, row.local.budget, row.local.failures, table)


def _metric_cases(
    name: str,
    metrics: Mapping[str, float],
    budget: Mapping[str, float],
    failures: Iterable[Failure],
    table: Mapping[str, Metric],
    detail: str = "",
) -> Iterator[_Case]:
    """A case for every metric with a budget, and for every count of NaN and Inf."""
    failed = {failure.metric: failure for failure in failures}
    for metric in dict.fromkeys((*budget, *(count for count in _COUNTS if count in metrics), *failed)):
        failure = failed.get(metric)
        if failure is None:
            yield _Case(name=f"{name} {metric}", verdict="pass")
            continue
        message = f"expected {limit_as_text(failure)}, obtained {figure(failure.obtained)}"
        exact = f"expected {failure.relation} {failure.expected!r}, obtained {failure.obtained!r}{detail}"
        if is_higher_better(metric, table):
            exact += "\nhigher is better"
        yield _Case(name=f"{name} {metric}", verdict="fail", kind=metric, message=message, detail=exact)


def _xml(text: str) -> str:
    """The text with every character that XML cannot hold replaced."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
