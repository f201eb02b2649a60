"""The pages of precisions, of commands and options, and of exit codes and errors."""

from __future__ import annotations

from collections.abc import Iterator

import typer
import typer.main

from andrea_export.cli.app import app
from andrea_export.core.errors import AndreaError
from andrea_export.core.precision import HALF_MODULES, PRECISIONS, Precision
from andrea_export.judge.outcome import ExitCode, outcome
from reference_pages.markdown import page, prose, table

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
