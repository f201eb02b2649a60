"""What the plugin's tests share: one build of each library a session, and the figures they measure, last."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from andrea_export.errors import BackendUnavailable
from andrea_export.plugins import HostGelu, PluginBuild, build_host_library, build_plugin_library
from andrea_export.plugins.toolchain import find_cmake, find_ninja

# Tests are imported by path, so the modules they share are not found by themselves.
sys.path.insert(0, str(Path(__file__).resolve().parent))

REPOSITORY = Path(__file__).resolve().parents[2]
# In the checkout's ignored build folder, so that a second run compiles nothing. Keyed by content: never
# stale.
CACHE = REPOSITORY / "build" / "test-cache"
_MEASURED = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_MEASURED] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash[_MEASURED]
    if lines:
        terminalreporter.section("plugin: measured")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def measured(pytestconfig: pytest.Config) -> list[str]:
    """Lines appended here are printed after the tests."""
    return pytestconfig.stash[_MEASURED]


@pytest.fixture(scope="session")
def plugin_build() -> PluginBuild:
    try:
        return build_plugin_library(CACHE)
    except BackendUnavailable as missing:
        pytest.skip(f"{missing} ({missing.hint})")


@pytest.fixture(scope="session")
def host_gelu() -> HostGelu:
    return build_host_library(CACHE)


def build_test_programs(folder: Path, *definitions: str) -> Path:
    """The folder with the C++ test programs, compiled by g++ alone; ninja does nothing where nothing changed."""
    cmake = str(find_cmake().path)
    configure = [cmake, "-S", str(REPOSITORY / "plugins"), "-B", str(folder), "-G", "Ninja"]
    build = [cmake, "--build", str(folder), "--target", "andrea_tests", "-j", "2"]
    options = [
        f"-DCMAKE_MAKE_PROGRAM={find_ninja().path}",
        "-DANDREA_HOST_ONLY=ON",
        "-DANDREA_BUILD_TESTS=ON",
        *definitions,
    ]
    for command in ([*configure, *options], build):
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
        assert finished.returncode == 0, finished.stdout + finished.stderr
    return folder


@pytest.fixture(scope="session")
def cpp_programs() -> Path:
    return build_test_programs(REPOSITORY / "build" / "plugin-tests")


@pytest.fixture(scope="session")
def sanitized_programs() -> Path:
    return build_test_programs(REPOSITORY / "build" / "plugin-tests-sanitized", "-DANDREA_SANITIZE=ON")
