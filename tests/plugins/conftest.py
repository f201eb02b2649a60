"""What the plugin's tests share: one build of each library a session.

Everything is compiled anew in the session's temporary folder, never in the checkout: a run says that these sources
compile with these compilers, whatever ran before it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from andrea_export.core.errors import BackendUnavailable
from andrea_export.operators import HostGelu, PluginBuild, build_host_library, build_plugin_library
from andrea_export.operators.toolchain import find_cmake, find_ninja

# Tests are imported by path, so the modules they share are not found by themselves.
sys.path.insert(0, str(Path(__file__).resolve().parent))

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def plugin_build(cache_dir: Path) -> PluginBuild:
    """The library users get, compiled in this session."""
    try:
        return build_plugin_library(cache_dir)
    except BackendUnavailable as missing:
        pytest.skip(f"{missing} ({missing.hint})")


@pytest.fixture(scope="session")
def host_gelu(cache_dir: Path) -> HostGelu:
    return build_host_library(cache_dir)


def build_programs(sources: Path, folder: Path, target: str, *definitions: str) -> Path:
    """`folder` with what the target makes of the sources, compiled by g++ alone, where a warning is an error."""
    cmake = str(find_cmake().path)
    configure = [cmake, "-S", str(sources), "-B", str(folder), "-G", "Ninja"]
    build = [cmake, "--build", str(folder), "--target", target, "-j", "2"]
    options = [
        f"-DCMAKE_MAKE_PROGRAM={find_ninja().path}",
        "-DANDREA_HOST_ONLY=ON",
        "-DANDREA_BUILD_TESTS=ON",
        "-DANDREA_WARNINGS_AS_ERRORS=ON",
        *definitions,
    ]
    for command in ([*configure, *options], build):
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
        assert finished.returncode == 0, finished.stdout + finished.stderr
    return folder


@pytest.fixture(scope="session")
def cpp_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_programs(REPOSITORY / "plugins", tmp_path_factory.mktemp("plugin-tests"), "andrea_tests")


@pytest.fixture(scope="session")
def sanitized_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_programs(
        REPOSITORY / "plugins", tmp_path_factory.mktemp("sanitized"), "andrea_tests", "-DANDREA_SANITIZE=ON"
    )
