"""README and guides are run: their blocks, in order, in an empty folder, as a reader would.

A fenced block tagged ``bash`` is run; one tagged ``sh`` shows commands that install things, take minutes or need a GPU,
and one tagged ``console`` shows output.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT

GUIDES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "guides").glob("*.md"))
PAGES = ["README.md", *GUIDES]


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, tag: str) -> list[str]:
    return re.findall(rf"^```{tag}\n(.*?)^```", read(page), flags=re.DOTALL | re.MULTILINE)


RUN = [page for page in PAGES if blocks(page, "bash")]
EVERYTHING = "\n".join(map(read, PAGES))


def test_there_is_something_to_run() -> None:
    assert {"README.md", "docs/guides/quick-start.md", "docs/guides/generating.md"} <= set(RUN)
    assert len(blocks("docs/guides/quick-start.md", "bash")) >= 3


@pytest.mark.parametrize("page", RUN)
def test_its_blocks_run(page: str, tmp_path: Path, cache_dir: Path) -> None:
    """All blocks of a page in one shell, in order: any command that fails ends it."""
    (tmp_path / "home").mkdir()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "andrea-export").symlink_to(cache_dir)  # the plugin that other tests compiled
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HOME": str(tmp_path / "home"),
        "TMPDIR": str(tmp_path),
    }
    script = "set -euo pipefail\n" + "\n".join(blocks(page, "bash"))
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("page", [*PAGES, "model/README.md"])
def test_every_python_block_runs(page: str) -> None:
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), {})


@pytest.mark.parametrize("name", ["load", "Sampling", "generate", "generate_batch", "load_model", "save_checkpoint"])
def test_every_public_name_is_shown_where_it_is_run(name: str) -> None:
    assert any(re.search(rf"\b{name}\(", block) for page in RUN for block in blocks(page, "bash"))


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\bmake ([a-z]+)\b(?=  |`|\n)", EVERYTHING))))
def test_every_make_target_it_names_exists(target: str) -> None:
    assert re.search(rf"^{target}:", read("Makefile"), flags=re.MULTILINE)


def test_every_option_it_names_exists() -> None:
    """Options in code spans and blocks, against the help of the commands."""
    from typer.testing import CliRunner

    from andrea_export.cli import app

    runner = CliRunner()
    commands = [command.callback.__name__ for command in app.registered_commands if command.callback]
    known = "".join(runner.invoke(app, [command, "--help"], terminal_width=400).output for command in commands)
    known += runner.invoke(app, ["--help"], terminal_width=400).output
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", EVERYTHING))
    assert named
    assert {option for option in named if option not in known} == set()
