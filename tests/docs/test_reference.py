"""The reference is what the code gives: a page that differs is to be made again, python scripts/write_reference.py."""

from __future__ import annotations

import pytest

from support.paths import ROOT
from support.reference_pages import PAGES

REFERENCE = ROOT / "docs" / "reference"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_gives(name: str) -> None:
    assert (REFERENCE / name).read_text(encoding="utf-8") == PAGES[name]()


def test_there_is_no_other_page() -> None:
    assert {path.name for path in REFERENCE.iterdir()} == set(PAGES)


def test_every_command_and_every_key_has_a_row() -> None:
    """The generator leaves nothing out: the commands of the program, and what a recipe may hold."""
    from andrea_export.cli import app
    from andrea_export.targets.recipe import Recipe

    commands = [command.name for command in app.registered_commands]
    assert commands and all(f"\n## {name}\n" in PAGES["command-line.md"]() for name in commands)
    assert all(f"\n| `{key}` |" in PAGES["recipe.md"]() for key in Recipe.__dataclass_fields__)
