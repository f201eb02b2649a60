"""A report's file: JSON out, JSON in, and the JSON Schema that says what is in it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from andrea_export import __version__
from andrea_export.core.errors import ReportError
from andrea_export.core.numbers import json_values
from andrea_export.report.schema import Report

SCHEMA = "andrea-export/report/2"

PLUGIN_MATHS = "plugin-maths-"
"""How the names of candidates with a truth of their own begin: this schema has no other place that says so."""

# What the file has beyond the dataclass; a reader computes it again.
_COMPUTED: dict[str, dict[str, Any]] = {
    "schema": {"const": SCHEMA},
    "verdict": {"enum": ["pass", "fail"]},
    "first_failure": {"type": ["string", "null"]},
    "andrea_export": {"type": "string"},
}


def report_as_mapping(report: Report) -> dict[str, Any]:
    """The report as plain JSON values, in a fixed key order, without paths of this machine."""
    return {
        "schema": SCHEMA,
        "verdict": report.verdict,
        "first_failure": report.first_failure,
        "formula": report.formula,
        "andrea_export": __version__,
        "reference": dict(report.reference),
        "inputs": dict(report.inputs),
        "policy": dict(report.policy),
        "versions": dict(report.versions),
        "candidates": [
            {key: value for key, value in asdict(one).items() if key != "has_own_truth"} for one in report.candidates
        ],
        "checks": [asdict(check) for check in report.checks],
        "layers": [asdict(row) for row in report.layers],
        "language_model": [asdict(row) for row in report.language_model],
        "ratchet": [asdict(row) for row in report.ratchet],
        "layer_order": list(report.layer_order),
        "metrics": {name: asdict(metric) for name, metric in report.metrics.items()},
    }


def report_as_json(report: Report) -> str:
    """The report as JSON text; a figure that is not finite is written as a string, for JSON has none."""
    return json.dumps(json_values(report_as_mapping(report)), indent=1, ensure_ascii=False) + "\n"


def report_from_json(file: Path) -> Report:
    """The report in a file. Raises ReportError if it is not one, or of a schema this version does not know."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportError(f"report {file}: {error.strerror}") from None
    except ValueError as error:  # JSONDecodeError, or bytes that are not UTF-8
        raise ReportError(f"report {file} is not JSON: {error}", hint="was it cut short?") from None
    found = content.get("schema") if isinstance(content, dict) else None
    if found != SCHEMA:
        if isinstance(found, str) and found.startswith("andrea-export/report/"):
            hint = "use the version of andrea-export that wrote it, or make it again"
            raise ReportError(f"report {file} has schema {found!r}, expected {SCHEMA!r}", hint=hint)
        raise ReportError(f"{file} is not a report: it has schema {found!r}, expected {SCHEMA!r}")
    values = {key: value for key, value in content.items() if key not in _COMPUTED}
    try:
        report: Report = TypeAdapter(Report).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ReportError(f"report {file} is damaged: {where}: {first['msg'].lower()}", hint="make it again") from None
    named = (
        replace(candidate, has_own_truth=candidate.name.startswith(PLUGIN_MATHS)) for candidate in report.candidates
    )
    return replace(report, candidates=tuple(named))


def report_json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of what ``report_as_json`` writes; shipped as ``schemas/report-2.json``."""
    schema = TypeAdapter(Report).json_schema(mode="serialization")
    not_finite = {"enum": ["nan", "inf", "-inf"]}
    widened: dict[str, Any] = _replace(schema, {"type": "number"}, {"anyOf": [{"type": "number"}, not_finite]})
    properties = {**_COMPUTED, **widened["properties"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        "title": "A comparison by andrea-export",
        **{key: value for key, value in widened.items() if key not in ("title", "properties", "required")},
        "properties": properties,
        "required": list(properties),
    }


def _replace(value: Any, old: Any, new: Any) -> Any:
    """The same JSON with every object equal to ``old``, or holding all its entries, widened to ``new``."""
    if isinstance(value, Mapping):
        if all(value.get(key) == entry for key, entry in old.items()):
            return {**{key: entry for key, entry in value.items() if key not in old}, **new}
        return {key: _replace(entry, old, new) for key, entry in value.items()}
    if isinstance(value, list):
        return [_replace(entry, old, new) for entry in value]
    return value
