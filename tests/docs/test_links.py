"""Pages lead somewhere: every relative link, its heading, and every page that the code names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.paths import ROOT

FOLDERS = ("docs", "model", "plugins", "andrea_export", "scripts", "tests")
PAGES = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md")))]


SOURCES = [
    path
    for folder in FOLDERS
    for end in ("py", "sh", "toml", "yml")
    for path in sorted((ROOT / folder).rglob(f"*.{end}"))
]


def prose(page: Path) -> str:
    """A page without its fenced blocks, in which a bracket is code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub links to them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_resolves(page: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)) if not re.match(r"https?:", link)]
    for link in links:
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_of_docs_is_reachable_from_the_readme() -> None:
    reached, new = set[Path](), {ROOT / "README.md"}
    while new:
        reached |= new
        links = {(page.parent / link).resolve() for page in new for link in re.findall(r"\]\(([^)\s#]+)", prose(page))}
        new = {link for link in links if link.suffix == ".md" and link.is_file()} - reached
    assert set((ROOT / "docs").rglob("*.md")) - reached == set()


def test_every_page_that_the_code_names_exists() -> None:
    named = {
        (str(source.relative_to(ROOT)), name)
        for source in SOURCES
        for name in re.findall(r"(?<![\w/])docs/[\w/.-]+\.(?:md|json|toml|yml)\b", source.read_text(encoding="utf-8"))
    }
    assert named and sorted((source, name) for source, name in named if not (ROOT / name).exists()) == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_pictures_are_small() -> None:
    assert [image for image in (ROOT / "docs").rglob("*.png") if image.stat().st_size > 200_000] == []
