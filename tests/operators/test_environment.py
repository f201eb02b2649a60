"""What a shell sets for compilers does not reach a build."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

import andrea_export.operators.toolchain as toolchain
from andrea_export.core.errors import BackendUnavailable
from andrea_export.operators.build import build_host_library
from andrea_export.operators.toolchain import compilers_environment


def test_what_a_shell_sets_for_compilers_does_not_reach_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any of these would stop the build, or change it under the same key."""
    plain = build_host_library(tmp_path / "plain").library
    monkeypatch.setenv("CXX", "no-such-compiler")
    for flags in ("CXXFLAGS", "LDFLAGS", "CUDAFLAGS", "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS"):
        monkeypatch.setenv(flags, "--no-such-flag")
    for launcher in ("CMAKE_CXX_COMPILER_LAUNCHER", "CMAKE_CXX_LINKER_LAUNCHER", "NVCC_CCBIN", "CUDAHOSTCXX"):
        monkeypatch.setenv(launcher, "no-such-program")
    monkeypatch.setenv("CMAKE_BUILD_TYPE", "Debug")
    monkeypatch.setenv("CMAKE_TOOLCHAIN_FILE", str(tmp_path / "no-such-file"))
    monkeypatch.setenv("CPATH", str(tmp_path))
    (tmp_path / "cmath").write_text("#error not this one\n")
    monkeypatch.setenv("LD_RUN_PATH", str(tmp_path))
    there = build_host_library(tmp_path / "there").library
    assert there.read_bytes() == plain.read_bytes()


# What nvcc appends to its tools' command lines beside what its profile names; found in the program itself.
UNDOCUMENTED = {"NVASM_FLAGS", "NVDISASM_FLAGS", "NVLINK_FLAGS", "NVVM_FLAGS", "OCG_FLAGS"}


DOCUMENTED = {"NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS"}


def test_what_a_shell_sets_for_nvcc_does_not_reach_its_tools(tmp_path: Path) -> None:
    """`nvcc --dryrun` prints every command it would run, and each of these names would be in one."""
    try:
        toolkit = toolchain.find_cuda_toolkit()
    except BackendUnavailable as missing:
        pytest.skip(str(missing))
    profile = (toolkit.root / "bin" / "nvcc.profile").read_text()
    appended = set(re.findall(r"^(\w+) *(?:\+=|=\+)", profile, re.MULTILINE)) - {"PATH", "LD_LIBRARY_PATH"}
    assert {"PTXAS_FLAGS", "CUDAFE_FLAGS", "INCLUDES", "SYSTEM_INCLUDES", "LIBRARIES"} <= appended
    source = tmp_path / "empty.cu"
    source.write_text("__global__ void nothing() {}\n")
    command = [str(toolkit.nvcc.path), "--dryrun", "-shared", "-o", str(tmp_path / "empty.so"), str(source)]

    def reached(environment: dict[str, str]) -> set[str]:
        said = subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stderr
        return set(re.findall(r"-DSET_(\w+)", said))

    shell = {**os.environ, **{name: f"-DSET_{name}" for name in appended | UNDOCUMENTED | DOCUMENTED}}
    assert appended <= reached(shell)  # or what follows would prove nothing
    assert reached(compilers_environment(shell)) == set()
