"""The keys of a recipe, a policy and a report: from the dataclasses' schemas and the docstrings of their fields."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import re
import sys
import textwrap
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from andrea_export.judge.policy import Policy, policy_as_mapping, policy_json_schema
from andrea_export.report.file import report_json_schema
from andrea_export.report.metrics import METRICS
from andrea_export.report.schema import Report
from andrea_export.targets.recipe import Recipe, recipe_as_mapping
from reference_pages.markdown import page, prose, table

Json = Mapping[str, Any]

_NOT_FINITE = {"enum": ["nan", "inf", "-inf"]}


def recipe() -> str:
    """The page of recipe keys."""
    schema = TypeAdapter(Recipe).json_schema()
    return page("Recipe keys", *_Tables(schema, recipe_as_mapping(Recipe())).of(Recipe))


def policy() -> str:
    """The page of policy keys."""
    stored = "Their JSON Schema ships with the package: `andrea_export/schemas/policy-1.json`."
    return page("Policy keys", stored, *_Tables(policy_json_schema(), policy_as_mapping(Policy())).of(Policy))


def report() -> str:
    """The page of a report's keys, and of the metrics in it."""
    stored = (
        "Their JSON Schema ships with the package: `andrea_export/schemas/report-2.json`. A number that is not finite "
        'is written as `"nan"`, `"inf"` or `"-inf"`.'
    )
    metrics = [(f"`{name}`", metric.unit, metric.better, metric.meaning) for name, metric in METRICS.items()]
    meanings = table(("metric", "unit", "better", "meaning"), metrics)
    return page("Report keys", stored, *_Tables(report_json_schema()).of(Report), "## What the metrics mean", meanings)


class _Tables:
    """One table a dataclass; where a dataclass is met again, the key links to the table it has."""

    def __init__(self, schema: Json, defaults: Json | None = None) -> None:
        self.schema, self.defaults = schema, defaults
        self.places: dict[str, str] = {}

    def of(self, kind: type, place: str = "", defaults: Json | None = None) -> list[str]:
        """The table of a dataclass whose key is ``place``, then those of the dataclasses in it."""
        schema = self.schema["$defs"][kind.__name__] if place else self.schema
        defaults = (self.defaults or {}) if defaults is None else defaults
        meanings, rows, below = _docstrings(kind), [], list[str]()
        for name, entry in schema["properties"].items():
            default = defaults.get(name, entry.get("default"))
            known = len(self.places)
            value = self._value(entry, f"{place}.{name}".lstrip("."))
            shown = "required" if name in schema.get("required", ()) else _shown(default)
            rows.append((f"`{name}`", value, *([] if self.defaults is None else [shown]), prose(meanings.get(name))))
            for nested, its_place in list(self.places.items())[known:]:
                inner = default if isinstance(default, dict) else {}
                below += self.of(vars(sys.modules[kind.__module__])[nested], its_place, inner)
        head = ("key", "value", *([] if self.defaults is None else ["default"]), "meaning")
        return [*([f"## `{place}`"] if place else []), prose(kind.__doc__), table(head, rows), *below]

    def _value(self, entry: Json, place: str) -> str:
        """What a JSON Schema allows, in a few words."""
        if "$ref" in entry:
            place = self.places.setdefault(entry["$ref"].rpartition("/")[2], place)
            return f"[`{place}`](#{re.sub(r'[^a-z0-9_-]', '', place.lower())})"
        if "enum" in entry or "const" in entry:
            return ", ".join(f"`{json.dumps(value)}`" for value in entry.get("enum", [entry.get("const")]))
        if "anyOf" in entry:
            allowed = [option for option in entry["anyOf"] if option not in ({"type": "null"}, _NOT_FINITE)]
            return " or ".join(self._value(option, place) for option in allowed)
        if "items" in entry:
            return f"list of {self._value(entry['items'], f'{place}[]')}"
        if isinstance(entry.get("additionalProperties"), dict):
            return f"table of {self._value(entry['additionalProperties'], f'{place}.*')}"
        kinds = entry.get("type", "list" if "prefixItems" in entry else "anything")
        return " or ".join(kinds) if isinstance(kinds, list) else str(kinds).replace("object", "table")


def _shown(default: object) -> str:
    """A default as a cell; that of a table of keys is where its keys are."""
    if default is None:
        return ""
    inside = isinstance(default, dict) and any(not isinstance(value, int) for value in default.values())
    return "" if inside else f"`{json.dumps(default, ensure_ascii=False)}`"


def _docstrings(kind: type) -> dict[str, str]:
    """Field → the docstring beneath it."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]
    return {
        field.target.id: text.value.value
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }
