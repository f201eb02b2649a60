"""The pages of docs/reference, each made from the code it describes.

A page is the text of one function here. What a key, an option or an error means is read where the code says it (a
docstring, a help text), so that nothing is said twice.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import typer
import typer.main
from pydantic import TypeAdapter

from andrea_export.cli.app import app
from andrea_export.core.errors import AndreaError
from andrea_export.core.precision import HALF_MODULES, PRECISIONS, Precision
from andrea_export.judge.policy import Policy, policy_as_mapping, policy_json_schema
from andrea_export.judge.verdicts import ExitCode, outcome
from andrea_export.report.file import report_json_schema
from andrea_export.report.metrics import METRICS
from andrea_export.report.schema import Report
from andrea_export.targets.recipe import Recipe, recipe_as_mapping

_HEAD = (
    "precision",
    f"{' and '.join(f'`{name}`' for name in HALF_MODULES)} of a block",
    "everything else",
    "built by",
    "torch runs in it, to derive budgets",
)


def precisions() -> str:
    """The page of precisions: what computes in what, and what is built in them."""
    why = "[Precisions](../concepts/precisions.md) says why, and what is 8 or 4 bits in the last two."
    return page("Precisions", why, table(_HEAD, map(_row, PRECISIONS.values())))


def _row(row: Precision) -> tuple[str, ...]:
    built = [*(["engines"] if row.in_engines else []), *(["`ort-cpu`"] if row.in_ort_cpu else [])]
    return f"`{row.name}`", row.compute_dtype, row.rest_dtype, ", ".join(built), "yes" if row.has_budgets else "no"


def exit_codes() -> str:
    """The page of exit codes and of the errors that end with them."""
    rows = [(f"`{kind.__name__}`", str(kind.exit_code), prose(kind.__doc__)) for kind in _tree(AndreaError)]
    about = (
        "Every failure a user can meet is one of these classes of `andrea_export.core.errors`. Its text is one line, "
        'its `hint` the way out. With `--json` it is `{"error": …, "hint": …, "exit_code": …}` on stdout.'
    )
    judged = ", ".join(f"{code.name} is {code}" for code in ExitCode)
    reports = f"A judged report ends alike in every command. {prose(outcome.__doc__)} {judged}."
    codes = "What each code means: [the README](../../README.md#exit-codes)."
    return page(
        "Exit codes and errors", codes, reports, "## Errors", about, table(("error", "exit code", "raised for"), rows)
    )


def _tree(kind: type[AndreaError]) -> Iterator[type[AndreaError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _tree(child)


def command_line() -> str:
    """The page of commands: what each does, its arguments and its options."""
    root = typer.main.get_command(app)
    context = typer.Context(root, info_name="andrea-export")
    parts = [f"{prose(root.help)} `andrea-export --help` and `andrea-export COMMAND --help` say the same."]
    parts.append(_parameters(root, context))
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        inner = typer.Context(command, info_name=name, parent=context)
        paragraphs = [prose(paragraph) for paragraph in (command.help or "").split("\n\n")]
        usage = command.get_usage(inner).removeprefix("Usage: ")
        parts += [f"## {name}", f"`{usage}`", *paragraphs, _parameters(command, inner)]
    return page("Command line", *parts)


def _parameters(command: object, context: typer.Context) -> str:
    parameters = command.get_params(context)  # type: ignore[attr-defined]
    records = [parameter.get_help_record(context) for parameter in parameters]
    rows = [(f"`{record[0]}`", prose(record[1])) for record in records if record]
    return table(("argument or option", "meaning"), rows)


def page(title: str, *parts: str) -> str:
    """A page: its title, where it comes from, its parts."""
    made = "Made from the code by `scripts/write_reference.py`; do not edit."
    return "\n\n".join([f"# {title}", made, *parts]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a bar inside a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def prose(text: str | None) -> str:
    """A docstring or help text on one line: its code spans as Markdown has them, the pages it names as links."""
    line = " ".join(inspect.cleandoc(text or "").split()).replace("``", "`")
    return re.sub(r"\bdocs/([\w/-]+\.md)", r"[docs/\1](../\1)", line)


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


PAGES = {
    "command-line.md": command_line,
    "recipe.md": recipe,
    "policy.md": policy,
    "report.md": report,
    "exit-codes.md": exit_codes,
    "precisions.md": precisions,
}
