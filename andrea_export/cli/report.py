"""``andrea-export report``: a report that was made earlier, as HTML, JUnit XML, Markdown or JSON."""

import os
import tempfile
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from andrea_export.cli.options import option
from andrea_export.cli.output import emit, note
from andrea_export.core.errors import UsageError


class FormatChoice(str, Enum):
    """How a report can be rendered."""

    HTML = "html"
    JUNIT = "junit"
    MARKDOWN = "markdown"
    JSON = "json"


FormatOption = Annotated[
    FormatChoice,
    typer.Option("--format", help="html: one page for people. junit: for CI servers. markdown: for a pull request."),
]


def report(
    file: Annotated[Path, typer.Argument(help="A report.json that andrea-export wrote.", metavar="REPORT")],
    kind: FormatOption = FormatChoice.HTML,
    output: Annotated[Path | None, option("--output -o", "The file to write. [default: stdout]", "FILE")] = None,
) -> None:
    """Render a report. Judges nothing again, so the exit code is 0 for a failed report too: see `check` for a gate."""
    from andrea_export.report.file import report_from_json
    from andrea_export.report.render import render

    text = render(report_from_json(file), kind.value)
    if output is None:
        emit(text, end="")
        return
    write_whole(output, text)
    note(f"{kind.value} report: {output}")


def write_whole(path: Path, text: str) -> None:
    """Writes a text file that is there whole or not at all. Raises: UsageError for a folder, OSError."""
    if path.is_dir():
        raise UsageError(f"--output {path} is a folder, expected a file", hint=f"for example {path / 'report.html'}")
    descriptor, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
