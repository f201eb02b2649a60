"""ARCHITECTURE.md says who imports whom: this holds the code against it, and the lists against the files.

A block fenced as ``layers`` orders the packages of andrea_export; one fenced as ``layers compare`` the files of that
package. A file imports only from lines above its own. And the sizes that keep a file readable are held here, too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.paths import ROOT

PACKAGE = ROOT / "andrea_export"
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
SOURCES = sorted((*PACKAGE.rglob("*.py"), *(ROOT / "scripts").rglob("*.py")))
MAX_LINES, MAX_FUNCTION_LINES, MAX_POSITIONAL = 300, 60, 6


def floors(package: str) -> dict[str, int]:
    """Module or package → its line in the list of that package ("" for andrea_export itself), from the top."""
    block = re.search(rf"```layers{f' {package}' if package else ''}\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    return {name: line for line, names in enumerate(block[1].splitlines()) for name in names.split()}


def imports_of(file: Path) -> Iterator[str]:
    """Every module of ours a file imports, wherever in it; imports for annotations alone (TYPE_CHECKING) included."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("andrea_"))
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("andrea_"):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def place_in(package: str, module: str) -> str | None:
    """``andrea_export.sessions.base`` → ``sessions`` in "", ``base`` in "sessions"; None for what is not inside."""
    if package == "" and module.split(".")[0] == "andrea_model":
        return "andrea_model"
    inside = f"andrea_export.{package}." if package else "andrea_export."
    return module.removeprefix(inside).split(".")[0] if module.startswith(inside) else None


@pytest.mark.parametrize("package", re.findall(r"^```layers ?(\S*)$", PAGE, re.MULTILINE))
def test_every_file_imports_only_from_above(package: str) -> None:
    line, folder = floors(package), PACKAGE / package.replace(".", "/")
    wrong = []
    for file in sorted(folder.rglob("*.py")):
        own = file.relative_to(folder).with_suffix("").parts[0]
        for imported in {place for module in imports_of(file) if (place := place_in(package, module)) in line}:
            if own in line and imported != own and line[imported] >= line[own]:
                wrong.append(f"{file.relative_to(ROOT)} imports {imported}")
    assert wrong == []


@pytest.mark.parametrize("package", re.findall(r"^```layers ?(\S*)$", PAGE, re.MULTILINE))
def test_the_list_is_of_the_files_there_are(package: str) -> None:
    folder = PACKAGE / package.replace(".", "/")
    names = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert names - {"__init__"} == set(floors(package)) - {"andrea_model"}


def test_the_reference_model_never_imports_the_toolchain() -> None:
    for file in (ROOT / "model" / "andrea_model").glob("*.py"):
        assert all(module.startswith("andrea_model") for module in imports_of(file)), file


def test_no_file_is_too_long_to_be_read_at_once() -> None:
    lengths = {file.relative_to(ROOT): len(file.read_text(encoding="utf-8").splitlines()) for file in SOURCES}
    assert {str(file): length for file, length in lengths.items() if length > MAX_LINES} == {}


def test_no_function_is_too_long_and_none_takes_a_row_of_unnamed_values() -> None:
    found = []
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            positional = [a for a in (*node.args.posonlyargs, *node.args.args) if a.arg not in ("self", "cls")]
            if length > MAX_FUNCTION_LINES or len(positional) > MAX_POSITIONAL:
                found.append(f"{file.relative_to(ROOT)}: {node.name}, {length} lines, {len(positional)} positional")
    assert found == []


def test_a_script_is_an_entry_point() -> None:
    lengths = {
        file.name: len(file.read_text(encoding="utf-8").splitlines()) for file in (ROOT / "scripts").glob("*.py")
    }
    assert {name: length for name, length in lengths.items() if length >= MAX_FUNCTION_LINES} == {}
