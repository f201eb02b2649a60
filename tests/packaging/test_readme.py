"""The README is run: its quick start, block by block, in an empty folder, as a reader would.

A fenced block tagged ``bash`` is run; one tagged ``sh`` shows commands that install things or take minutes, and one
tagged ``console`` shows output.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(tag: str) -> list[str]:
    return re.findall(rf"^```{tag}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


def test_there_is_a_quick_start() -> None:
    assert len(blocks("bash")) >= 3


def test_the_quick_start_runs(tmp_path: Path, cache_dir: Path) -> None:
    """All blocks in one shell, in order: any command that fails ends it."""
    (tmp_path / "home").mkdir()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "andrea-export").symlink_to(cache_dir)  # what the suite has compiled already
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HOME": str(tmp_path / "home"),
    }
    script = "set -euo pipefail\n" + "\n".join(blocks("bash"))
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("path", ["README.md", "model/README.md"])
def test_every_python_block_runs(path: str) -> None:
    for block in re.findall(
        r"^```python\n(.*?)^```", (ROOT / path).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    ):
        exec(compile(block, path, "exec"), {})


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\bmake ([a-z]+)", README))))
def test_every_make_target_it_names_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\((?!http)([^)#]+)", README))))
def test_every_file_it_links_to_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_every_option_it_names_exists() -> None:
    """Options in code spans and blocks, against the help of the commands."""
    from typer.testing import CliRunner

    from andrea_export.cli import app

    runner = CliRunner()
    commands = [command.callback.__name__ for command in app.registered_commands if command.callback]
    known = "".join(runner.invoke(app, [command, "--help"], terminal_width=400).output for command in commands)
    known += runner.invoke(app, ["--help"], terminal_width=400).output
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README))
    assert named
    assert {option for option in named if option not in known} == set()
