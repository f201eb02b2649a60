"""Builds the plugin for the GPU of this machine, the harness that drives it, and, for a rehearsal, the CPU plugin."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from gpu_parts import REPOSITORY, Built, NotAvailable, PartResult, gpu_architecture

from andrea_export.core.errors import BackendUnavailable
from andrea_export.operators.build import build_plugin_library
from andrea_export.operators.creators import check_library
from andrea_export.operators.toolchain import find_cmake, find_cuda_toolkit, find_gxx, find_ninja


def named_toolkit() -> Path | None:
    """What the environment calls the CUDA toolkit: an nvcc, or a folder."""
    named = os.environ.get("CUDACXX") or os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return Path(named) if named else None


def build(folder: Path, result: PartResult, *, rehearse: bool) -> Built:
    """The libraries in `folder`, compiled now. Raises: NotAvailable, PluginError."""
    from andrea_export.operators.sources import andrea_gelu

    architecture = "" if rehearse else gpu_architecture()
    try:
        cmake, ninja, gxx = find_cmake(), find_ninja(), find_gxx()
    except BackendUnavailable as missing:
        raise NotAvailable(f"{missing} ({missing.hint})") from missing
    programs = folder / "programs"
    configure = [str(cmake.path), "-S", str(REPOSITORY / "plugins"), "-B", str(programs), "-G", "Ninja"]
    options = [f"-DCMAKE_MAKE_PROGRAM={ninja.path}", "-DANDREA_HOST_ONLY=ON", "-DANDREA_BUILD_TESTS=ON"]
    targets = ["--target", "andrea_harness", *(["andrea_plugins_cpu"] if rehearse else [])]
    for command in ([*configure, *options], [str(cmake.path), "--build", str(programs), *targets]):
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
        if finished.returncode != 0:
            raise RuntimeError(f"{command[1]} failed: {(finished.stdout + finished.stderr)[-1500:]}")
    result.row({"what": "g++", "version": gxx.version})
    result.row({"what": "cmake", "version": cmake.version})
    harness = programs / "libandrea_harness.so"
    if rehearse:
        library = programs / "libandrea_plugins_cpu.so"
        check_library(library, andrea_gelu())
        return Built(device="cpu", plugin=library, harness=harness, cache=folder / "cache", nvcc=None)
    try:
        toolkit = find_cuda_toolkit(named_toolkit())
    except BackendUnavailable as missing:
        raise NotAvailable(f"{missing} ({missing.hint})") from missing
    library = build_plugin_library(
        folder / "cache", architectures=(f"{architecture}-real",), toolkit_root=named_toolkit()
    ).library
    check_library(library, andrea_gelu())
    result.row({"what": "nvcc", "version": toolkit.nvcc.version})
    result.row({"what": "plugin", "version": f"{library.stat().st_size} bytes for sm_{architecture}"})
    return Built(device="cuda", plugin=library, harness=harness, cache=folder / "cache", nvcc=str(toolkit.nvcc.path))
