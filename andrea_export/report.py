"""The report: data, not text. Owns its schema and its JSON; computes nothing but its own verdict, renders nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from andrea_export import __version__
from andrea_export.errors import ValidationError
from andrea_export.judge import FORMULA, Verdict

SCHEMA = "andrea-export/report/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """One layer of one candidate against the reference. A layer the candidate lacks has no metrics and fails."""

    name: str
    candidate: str
    verdict: Verdict
    metrics: Mapping[str, int | float]
    budget: Mapping[str, float]
    problem: str = ""
    """What is wrong where it is not a figure: the layer is missing, or has another shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One thing that was compared, or that could not be; ``facts`` are what else is known of it."""

    name: str
    verdict: Verdict
    reason: str = ""
    precision: str = "fp32"
    first_failure: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One statement that holds or does not: files match the manifest, weights are the checkpoint's, plugin counts."""

    name: str
    verdict: Verdict
    detail: str
    layer: str | None = None
    """The layer at fault, where one is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was compared with what, on which inputs, by which formula, and how it came out."""

    reference: Mapping[str, str]
    inputs: Mapping[str, Any]
    candidates: tuple[Candidate, ...]
    checks: tuple[Check, ...]
    layers: tuple[LayerRow, ...]
    layer_order: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """fail if any check, candidate or layer failed, or if nothing was measured; else pass."""
        verdicts = [*(check.verdict for check in self.checks), *(row.verdict for row in self.layers)]
        measured = [candidate.verdict for candidate in self.candidates if candidate.verdict != "not-measured"]
        return "pass" if measured and "fail" not in [*verdicts, *measured] else "fail"

    @property
    def first_failure(self) -> str | None:
        """The first layer in model order that is out of budget or named by a failed check; None if there is none."""
        order = {name: index for index, name in enumerate(self.layer_order)}
        failed = [row.name for row in self.layers if row.verdict == "fail"]
        failed += [check.layer for check in self.checks if check.verdict == "fail" and check.layer is not None]
        return min(failed, key=lambda name: order.get(name, len(order)), default=None)


def report_as_mapping(report: Report) -> dict[str, Any]:
    """The report as plain JSON values, in a fixed key order, without paths of this machine."""
    return {
        "schema": SCHEMA,
        "verdict": report.verdict,
        "first_failure": report.first_failure,
        "formula": FORMULA,
        "andrea_export": __version__,
        "reference": dict(report.reference),
        "inputs": dict(report.inputs),
        "versions": dict(report.versions),
        "candidates": [asdict(candidate) for candidate in report.candidates],
        "checks": [asdict(check) for check in report.checks],
        "layers": [asdict(row) for row in report.layers],
        "layer_order": list(report.layer_order),
    }


def report_as_json(report: Report) -> str:
    """The report as JSON text; a figure that is not finite is written as a string, for JSON has none."""
    return json.dumps(_finite(report_as_mapping(report)), indent=2, ensure_ascii=False) + "\n"


def report_from_json(file: Path) -> Report:
    """The report in a file. Raises ValidationError if it is not one, or of a schema this version does not know."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content.get("schema") != SCHEMA:
            raise ValidationError(
                f"{file} has schema {content.get('schema')!r}, expected {SCHEMA!r}",
                hint="use the version that wrote it",
            )
        report: Report = TypeAdapter(Report).validate_python(
            {key: value for key, value in content.items() if key in Report.__dataclass_fields__}
        )
    except (OSError, ValueError, AttributeError) as error:
        raise ValidationError(f"{file} is no report: {str(error).splitlines()[0]}") from None
    return report


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value
