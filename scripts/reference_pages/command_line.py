"""Every command and option, from typer's own help."""

from __future__ import annotations

import typer
import typer.main

from andrea_export.cli.app import app
from reference_pages.markdown import page, prose, table


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
