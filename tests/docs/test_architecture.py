"""ARCHITECTURE.md says who imports whom: this holds the code against it, and the list against the files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from support.paths import ROOT

PACKAGE = ROOT / "andrea_export"


def floors() -> dict[str, int]:
    """Module or package → its line in the list, from the top."""
    block = re.search(r"```layers\n(.*?)```", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    return {name: line for line, names in enumerate(block[1].splitlines()) for name in names.split()}


def place_of(module: str) -> str | None:
    """``andrea_export.sessions.base`` → ``backends``; None for what is not ours, and for the package itself."""
    if module.split(".")[0] == "andrea_model":
        return "andrea_model"
    parts = module.split(".")
    return parts[1] if parts[0] == "andrea_export" and len(parts) > 1 else None


def imports_of(file: Path) -> Iterator[str]:
    """Every module of ours a file imports, wherever in it; imports for annotations alone (TYPE_CHECKING) included."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            modules = [node.module]
            if node.module == "andrea_export":
                modules = [f"andrea_export.{alias.name}" for alias in node.names]
        yield from (place for place in map(place_of, modules) if place is not None)


def test_every_file_imports_only_from_above() -> None:
    line = floors()
    wrong = [
        f"{file.relative_to(ROOT)} imports {imported}"
        for file in sorted(PACKAGE.rglob("*.py"))
        for own in [place_of(".".join(file.relative_to(ROOT).with_suffix("").parts))]
        if own not in (None, "__init__")
        for imported in imports_of(file)
        if imported not in (own, "__version__") and line[imported] >= line[own]
    ]
    assert wrong == []


def test_the_reference_model_never_imports_the_toolchain() -> None:
    for file in (ROOT / "model" / "andrea_model").glob("*.py"):
        assert set(imports_of(file)) <= {"andrea_model"}, file


def test_the_list_is_of_the_files_there_are() -> None:
    names = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert names - {"__init__"} == set(floors()) - {"andrea_model"}
