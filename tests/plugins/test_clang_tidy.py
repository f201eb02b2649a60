"""clang-tidy finds nothing in the plugin's sources; .clang-tidy beside them says what is asked and what is left out."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import REPOSITORY

PLUGINS = REPOSITORY / "plugins"
# Everything g++ compiles, kernels included. tests/device_checks.cu needs CUDA's headers, and is a test of its own.
SOURCES = sorted(
    path.relative_to(PLUGINS).as_posix()
    for pattern in ("common/*.cpp", "gelu/*.cpp", "gelu/*.cu", "tests/*.cpp")
    for path in PLUGINS.glob(pattern)
)


def find_clang_tidy() -> str | None:
    """The environment's own, else PATH's."""
    return shutil.which("clang-tidy", path=sysconfig.get_path("scripts")) or shutil.which("clang-tidy")


def findings(clang_tidy: str, source: str, generated: Path) -> str:
    options = ["-x", "c++", "-std=c++17", "-DANDREA_CPU_GRID=1", "-I.", "-Iabi", f"-I{generated}"]
    command = [clang_tidy, "--quiet", source, "--", *options]
    finished = subprocess.run(command, cwd=PLUGINS, capture_output=True, text=True, check=False)
    return finished.stdout if finished.returncode == 0 else finished.stdout + finished.stderr


def test_clang_tidy_is_clean(cpp_programs: Path) -> None:
    clang_tidy = find_clang_tidy()
    if clang_tidy is None:
        pytest.skip("clang-tidy is not here (pip install 'andrea-export[dev]')")
    assert "gelu/kernel.cu" in SOURCES
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda source: findings(clang_tidy, source, cpp_programs / "generated"), SOURCES))
    assert found == [""] * len(SOURCES)
