"""The library as a file: what it exports, what it needs, what it carries."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from andrea_export.operators.build import PluginBuild, build_plugin_library

# The newest C++ runtime symbols the library may ask for: those of GCC 5 (2015), older than any supported TensorRT.
NEWEST = {"GLIBCXX": (3, 4, 21), "CXXABI": (1, 3, 9), "GCC": (3, 0)}


def run(*command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} (binutils) is not here")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_compiles_without_a_warning(plugin_build: PluginBuild) -> None:
    """A user's build only shows warnings; here one is a failure, nvcc's, ptxas's and g++'s alike."""
    log = plugin_build.library.parent.with_suffix(".log").read_text()
    assert "-Wextra" in log or "Building CUDA object" in log
    assert [line for line in log.splitlines() if "warning" in line.lower()] == []


def test_exports_two_functions_and_nothing_else(plugin_build: PluginBuild) -> None:
    listed = run("nm", "-D", "--defined-only", str(plugin_build.library))
    assert sorted(line.split()[-1] for line in listed.splitlines()) == ["getCreators", "setLoggerFinder"]


def test_links_no_tensorrt_and_no_cuda_library(plugin_build: PluginBuild) -> None:
    needed = re.findall(r"NEEDED.*\[(.+)\]", run("readelf", "-d", str(plugin_build.library)))
    allowed = re.compile(r"(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|ld-linux-.*)\.so\.\d+")
    assert needed
    assert [name for name in needed if not allowed.fullmatch(name)] == []


def test_needs_no_new_cxx_runtime(plugin_build: PluginBuild) -> None:
    asked = run("readelf", "-V", str(plugin_build.library))
    for family, newest in NEWEST.items():
        for version in re.findall(rf"\b{family}_([0-9.]+)", asked):
            assert tuple(int(part) for part in version.split(".")) <= newest


def test_two_builds_are_the_same_file(plugin_build: PluginBuild, tmp_path: Path) -> None:
    """In folders of different names, at different times; `plugin_build` says that there is a compiler."""
    first, second = (
        build_plugin_library(tmp_path / folder, architectures=("90-real",)) for folder in ("a", "another/folder")
    )
    assert not first.reused
    assert not second.reused
    assert first.library_sha256 == second.library_sha256


def test_carries_no_path_of_the_build_machine(plugin_build: PluginBuild) -> None:
    content = plugin_build.library.read_bytes()
    folder = str(plugin_build.library.parent.parent).encode()
    assert folder not in content
    dynamic = run("readelf", "-d", str(plugin_build.library))
    assert "RPATH" not in dynamic
    assert "RUNPATH" not in dynamic
