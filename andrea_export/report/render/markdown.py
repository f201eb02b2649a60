"""A report as Markdown for a pull-request comment: the verdict, the candidates, what failed, the language model."""

from collections.abc import Iterable, Iterator, Sequence

from andrea_export.report.render.wording import (
    Finding,
    counts,
    figure,
    findings,
    headline,
    reference_as_text,
    rows_of,
    worst_of,
)
from andrea_export.report.schema import Candidate, Report

MAX_CHARACTERS = 65_536  # GitHub's limit for one comment; GitLab's is larger
MAX_FINDINGS, MAX_CASES = 25, 40
_SYMBOLS = {"pass": "✅", "fail": "❌", "not-measured": "➖"}


def report_as_markdown(report: Report) -> str:
    """The report as GitHub-flavoured Markdown, short enough for one comment however large the report is."""
    found = findings(report)
    num_findings = min(MAX_FINDINGS, len(found))
    while True:
        text = "\n".join(_lines(report, found, num_findings)) + "\n"
        if len(text) <= MAX_CHARACTERS or num_findings == 0:
            return text[:MAX_CHARACTERS]
        num_findings //= 2  # only sentences of extraordinary length come here


def _lines(report: Report, found: Sequence[Finding], num_findings: int) -> Iterator[str]:
    yield f"## {_SYMBOLS[report.verdict]} Accuracy {report.verdict}"
    yield ""
    yield f"{_escaped(headline(report))}."
    yield ""
    yield from _table(
        ("candidate", "precision", "verdict", "layers within budget", "largest share of a budget"),
        [_candidate_cells(report, candidate) for candidate in report.candidates],
    )
    if found:
        yield ""
        yield from _table(
            ("failed", "candidate", "error", "metric", "expected", "obtained"),
            [
                (
                    _code(finding.where),
                    _escaped(finding.candidate),
                    finding.error,
                    _escaped(finding.metric),
                    finding.expected,
                    _escaped(finding.obtained),
                )
                for finding in found[:num_findings]
            ],
        )
        if len(found) > num_findings:
            yield ""
            yield f"and {len(found) - num_findings:,} more in the report."
    yield from _language_model(report)
    yield from _provenance(report)


def _candidate_cells(report: Report, candidate: Candidate) -> tuple[str, ...]:
    num_layers, num_failed = counts(report, candidate)
    verdict = f"{_SYMBOLS[candidate.verdict]} {candidate.verdict}"
    if candidate.verdict == "not-measured":
        verdict += f": {_escaped(candidate.reason)}"
    worst = worst_of(rows_of(report, candidate.name), report.metrics)
    shown = f"{worst.share:.3g} ({worst.error} {worst.metric}, {_code(worst.layer)})" if worst else ""
    layers = f"{num_layers - num_failed} of {num_layers}" if num_layers else ""
    return _code(candidate.name), candidate.precision, verdict, layers, shown


def _language_model(report: Report) -> Iterator[str]:
    if not report.language_model:
        return
    metrics = ("top1_agreement", "top5_overlap", "kl_mean", "kl_p99", "kl_max", "perplexity_difference")
    yield ""
    yield "<details><summary>Language model</summary>"
    yield ""
    yield from _table(
        ("candidate", "case", "verdict", "top-1", "top-5", "KL mean", "KL p99", "KL max", "perplexity Δ"),
        [
            (
                _code(row.candidate),
                _escaped(row.case),
                f"{_SYMBOLS[row.verdict]} {_escaped(row.reason)}".rstrip(),
                *(figure(float(row.metrics[name])) if name in row.metrics else "" for name in metrics),
            )
            for row in report.language_model[:MAX_CASES]
        ],
    )
    yield ""
    yield "</details>"


def _provenance(report: Report) -> Iterator[str]:
    yield ""
    yield "<details><summary>Reference, budgets, versions</summary>"
    yield ""
    yield f"- reference: {_escaped(reference_as_text(report))}"
    if report.formula:
        yield f"- {_escaped(report.formula)}"
    yield from (f"- check {_escaped(check.name)}: {check.verdict}: {_escaped(check.detail)}" for check in report.checks)
    yield from (f"- {_escaped(name)} {_escaped(version)}" for name, version in report.versions.items())
    yield ""
    yield "</details>"


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headers)} |"
    yield f"|{'|'.join(' --- ' for _ in headers)}|"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _code(text: str) -> str:
    """A name as code; a backtick or a bar in it would end the code or the cell."""
    return f"`{' '.join(text.split()).replace('`', 'ˋ').replace('|', '¦')}`" if text else ""


def _escaped(text: str) -> str:
    """Text without meaning to Markdown or HTML, on one line."""
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{character}" if character in "|`*_[]~@#" else character for character in plain)
