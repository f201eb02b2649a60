"""``andrea-export check``: a report judged again, under another policy or beside a baseline; nothing is run."""

from pathlib import Path
from typing import Annotated

import typer

from andrea_export.cli.diff import terms_from
from andrea_export.cli.judged import exit_with_outcome, screen, show
from andrea_export.cli.options import BaselineOption, JsonOption, PolicyOption


def check(
    report: Annotated[Path, typer.Argument(help="A report.json that andrea-export wrote.", metavar="REPORT")],
    policy: PolicyOption = None,
    baseline: BaselineOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge the figures of a report again. Without --policy: under the policy that is stored in it.

    Exit codes are those of `diff`. The file is not changed; --json prints the report as judged now.
    """
    from dataclasses import replace

    from andrea_export.judge.policy import policy_from_mapping
    from andrea_export.judge.verdicts import judged
    from andrea_export.report.file import report_from_json
    from andrea_export.report.render.terminal import report_lines

    before = report_from_json(report)
    terms = terms_from(policy, baseline)
    if policy is None and before.policy:
        origin = {key: str(before.policy.get(key, "")) for key in ("name", "sha256")}
        terms = replace(terms, policy=policy_from_mapping(before.policy), origin=origin)
    now = judged(before, terms)
    show(now, report_lines(now, str(report), screen=screen()), as_json=as_json)
    exit_with_outcome(now)
