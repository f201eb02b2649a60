"""Figures that tests measure, printed after the tests: a run says how good what it passed is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

_MEASURED = "measured"


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Lines appended here are printed at the end. They travel in the test's report, out of a worker's process."""
    lines: list[str] = []
    yield lines
    request.node.user_properties.extend((_MEASURED, line) for line in lines)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints what every worker's tests measured."""
    reports = [report for kind in terminalreporter.stats.values() for report in kind]
    lines = [
        line
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "teardown"
        for name, line in report.user_properties
        if name == _MEASURED
    ]
    if lines:
        terminalreporter.section("plugin: measured")
        for line in lines:
            terminalreporter.line(str(line))
