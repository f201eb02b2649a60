"""Our declarations of the plugin ABI against NVIDIA's own headers, where a folder with them is given.

TENSORRT_HEADERS names one or more TensorRT folders, separated by ``:`` (``/path/to/TensorRT-10.3:/path/to/TensorRT``).
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from andrea_export.operators.build import build_plugin_library
from andrea_export.operators.creators import check_library
from andrea_export.operators.sources import andrea_gelu
from andrea_export.operators.toolchain import find_cuda_toolkit
from support.plugin_builds import PLUGINS

HEADER_FOLDERS = [Path(folder) for folder in os.environ.get("TENSORRT_HEADERS", "").split(":") if folder]
CLASSES = ("andrea::ElementwisePlugin", "andrea::ElementwiseCreator")

nvidia_headers = pytest.mark.parametrize(
    "root",
    HEADER_FOLDERS
    or [pytest.param(None, marks=pytest.mark.skip(reason="TENSORRT_HEADERS names no folder with NVIDIA's headers"))],
    ids=lambda root: "none" if root is None else root.name,
)


def include_options(root: Path | None) -> list[str]:
    if root is None:
        return []
    folder = root / "include" if (root / "include" / "NvInferRuntime.h").is_file() else root
    return ["-DANDREA_USE_NVIDIA_HEADERS=1", "-isystem", str(folder)]


def compile_command(root: Path | None) -> list[str]:
    cuda = find_cuda_toolkit().root / "include"
    warnings = ["-Wall", "-Wextra", "-Werror"]
    return ["g++", "-std=c++17", *warnings, "-I", str(PLUGINS), "-isystem", str(cuda), *include_options(root)]


def class_layouts(root: Path | None, folder: Path) -> dict[str, str]:
    """Vtables, sizes and base offsets of the plugin's classes, as g++ lays them out; addresses of its own left out."""
    dump = folder / "classes.txt"
    source = PLUGINS / "tensorrt" / "elementwise_plugin.cpp"
    command = [*compile_command(root), "-fsyntax-only", f"-fdump-lang-class={dump}", str(source)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    blocks = dump.read_text().split("\n\n")
    found = {}
    for block in blocks:
        for name in CLASSES:
            if block.startswith((f"Vtable for {name}\n", f"Class {name}\n")):
                found[block.splitlines()[0]] = re.sub(r"0x0x[0-9a-f]+", "", block)
    assert len(found) == 2 * len(CLASSES)
    return found


def layout_facts(root: Path | None, folder: Path) -> str:
    program = folder / "layout"
    source = PLUGINS / "tests" / "abi_layout.cpp"
    # -Winvalid-offsetof: NVIDIA's PluginField has a constructor, which moves nothing.
    command = [*compile_command(root), "-Wno-invalid-offsetof", "-o", str(program), str(source)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout


def test_our_declarations_lay_out_one_vtable_with_every_interface(tmp_path: Path) -> None:
    vtable = class_layouts(None, tmp_path)["Vtable for andrea::ElementwisePlugin"]
    assert "57 entries" in vtable
    assert "Vtable for andrea::ElementwiseCreator" in class_layouts(None, tmp_path)


@nvidia_headers
def test_vtables_are_those_of_nvidias_headers(root: Path, tmp_path: Path) -> None:
    assert class_layouts(None, tmp_path) == class_layouts(root, tmp_path)


@nvidia_headers
def test_structures_and_enumerators_are_those_of_nvidias_headers(root: Path, tmp_path: Path) -> None:
    assert layout_facts(None, tmp_path) == layout_facts(root, tmp_path)


@nvidia_headers
def test_a_library_built_on_nvidias_headers_behaves_alike(root: Path, cpp_programs: Path, cache_dir: Path) -> None:
    """Built against NVIDIA's headers, driven through ours: one architecture, the whole contract."""
    build = build_plugin_library(cache_dir, architectures=("90-real",), tensorrt_root=root)
    assert build.facts.tensorrt_headers.startswith("NVIDIA ")
    op = andrea_gelu()
    check_library(build.library, op)
    if Path("/dev/nvidiactl").exists():
        return  # with a GPU, enqueue is tests/gpu's subject: host memory is no device memory
    names = [op.op_type, op.plugin_version, op.plugin_namespace]
    command = [str(cpp_programs / "andrea_contract_checks"), str(build.library), *names, "no-gpu"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
