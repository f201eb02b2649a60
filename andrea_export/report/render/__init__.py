"""A report as people and CI servers read it: one file a format, every one a pure function from a Report to text.

Nothing here judges: verdicts, budgets and failures are the report's own. ``wording`` holds what the formats share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from andrea_export.report.schema import Report

Format = Literal["html", "junit", "markdown", "json"]
FORMATS: tuple[Format, ...] = get_args(Format)


def render(report: Report, kind: Format) -> str:
    """The report in one format, as text that is to be written as UTF-8."""
    from andrea_export.report.file import report_as_json
    from andrea_export.report.render.html import report_as_html
    from andrea_export.report.render.junit import report_as_junit
    from andrea_export.report.render.markdown import report_as_markdown

    formats = {"html": report_as_html, "junit": report_as_junit, "markdown": report_as_markdown, "json": report_as_json}
    return formats[kind](report)
