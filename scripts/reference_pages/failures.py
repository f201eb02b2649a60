"""Exit codes and the error tree."""

from __future__ import annotations

from collections.abc import Iterator

from andrea_export.core.errors import AndreaError
from andrea_export.judge.outcome import ExitCode, outcome
from reference_pages.markdown import page, prose, table


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
