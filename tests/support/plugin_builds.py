"""Fixtures of everything that uses the plugin's code: each library and program is compiled once a run.

Compiled anew in the run's temporary folder, never in the checkout: a run says that these sources compile with these
compilers, whatever ran before it.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from andrea_export.core.errors import BackendUnavailable
from andrea_export.operators.build import HostGelu, PluginBuild, build_host_library, build_plugin_library
from andrea_export.operators.toolchain import find_cmake, find_ninja
from support.made_once import MadeOnce
from support.paths import ROOT

PLUGINS = ROOT / "plugins"
PLUGIN_ON_CPU = "libandrea_plugins_cpu.so"


@pytest.fixture(scope="session")
def plugin_build(cache_dir: Path) -> PluginBuild:
    """The library users get, compiled in this session."""
    try:
        return build_plugin_library(cache_dir)
    except BackendUnavailable as missing:
        pytest.skip(f"{missing} ({missing.hint})")


@pytest.fixture(scope="session")
def host_gelu(cache_dir: Path) -> HostGelu:
    """The plugin's maths on this machine's CPU."""
    return build_host_library(cache_dir)


def build_programs(sources: Path, folder: Path, *targets: str, sanitize: str = "", cross: Sequence[str] = ()) -> Path:
    """`folder` with what the targets make of the sources, compiled by g++ alone, where a warning is an error.

    `sanitize`: its sanitizers, as -fsanitize takes them. `cross`: CMake's options for another machine.
    """
    cmake = str(find_cmake().path)
    configure = [cmake, "-S", str(sources), "-B", str(folder), "-G", "Ninja"]
    build = [cmake, "--build", str(folder), "--target", *targets, "-j", "2"]
    options = [
        f"-DCMAKE_MAKE_PROGRAM={find_ninja().path}",
        "-DANDREA_HOST_ONLY=ON",
        "-DANDREA_BUILD_TESTS=ON",
        "-DANDREA_WARNINGS_AS_ERRORS=ON",
        f"-DANDREA_SANITIZE={sanitize}",
        *cross,
    ]
    for command in ([*configure, *options], build):
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
        assert finished.returncode == 0, finished.stdout + finished.stderr
    return folder


@pytest.fixture(scope="session")
def cpp_programs(made_once: MadeOnce) -> Path:
    """The folder of the C++ test programs and of the plugin over the CPU grid."""
    return made_once("plugin-programs", lambda folder: build_programs(PLUGINS, folder, "andrea_tests"))


@pytest.fixture(scope="session")
def sanitized_programs(made_once: MadeOnce) -> Path:
    """The same under the address and undefined-behaviour sanitizers."""
    return made_once(
        "sanitized-programs",
        lambda folder: build_programs(PLUGINS, folder, "andrea_tests", sanitize="address,undefined"),
    )


@pytest.fixture(scope="session")
def thread_checked_programs(made_once: MadeOnce) -> Path:
    """The CPU operators' checks under the thread sanitizer."""
    return made_once(
        "thread-checked", lambda folder: build_programs(PLUGINS, folder, "andrea_cpu_checks", sanitize="thread")
    )


@pytest.fixture(scope="session")
def arm_programs(made_once: MadeOnce) -> Path:
    """The CPU operators' checks, and the library, compiled for 64-bit Arm by Debian's cross-compiler."""
    compiler = shutil.which("aarch64-linux-gnu-g++")
    if compiler is None or shutil.which("qemu-aarch64") is None:
        pytest.skip("no Arm cross-compiler or emulator (apt install g++-aarch64-linux-gnu qemu-user)")
    cross = (
        "-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_CXX_COMPILER={compiler}",
    )  # fmt: skip
    return made_once(
        "arm", lambda folder: build_programs(PLUGINS, folder, "andrea_cpu_checks", "andrea_cpu", cross=cross)
    )


def compile_library(folder: Path, source: str) -> Path:
    """A shared library of a few lines of C++, which stand for somebody else's."""
    library = folder / "libforeign.so"
    command = ["g++", "-shared", "-fPIC", "-o", str(library), "-x", "c++", "-"]
    subprocess.run(command, input=source, text=True, check=True)
    return library
