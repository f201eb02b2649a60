"""What nvcc made of the kernel, from the machine code of every architecture in the library."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from andrea_export.core.errors import BackendUnavailable
from andrea_export.operators.build import PluginBuild
from andrea_export.operators.toolchain import find_cuda_toolkit
from support.plugin_builds import PLUGINS

# The two-pack loop's executed instructions per element: what was counted with nvcc 13.0, plus one, so that a compiler
# of another version may reorder but not add work. The floors in plugins/gelu/README.md follow from these.
MOST_INSTRUCTIONS = {"Fp32": 41, "Fp16": 13, "Bf16": 14}
MUFU = {"Fp32": 1, "Fp16": 2, "Bf16": 2}
ARCHITECTURES = ("sm_80", "sm_89", "sm_90", "sm_120")


def load(name: str) -> ModuleType:
    """A module of plugins/measure."""
    path = PLUGINS / "measure" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


sass = load("sass")


@pytest.fixture(scope="module")
def cuobjdump() -> Path:
    found = sass.find_cuobjdump()
    if found is None:
        pytest.skip("cuobjdump and nvdisasm are not here (pip install 'andrea-export[dev]')")
    assert isinstance(found, Path)
    return found


@pytest.fixture(scope="module")
def kernels(cuobjdump: Path, plugin_build: PluginBuild) -> list:
    return list(sass.operator_kernels(sass.read_kernels(cuobjdump, plugin_build.library), "gelu"))


def test_every_architecture_has_every_kernel_and_sm_90_its_ptx(
    cuobjdump: Path, kernels: list, plugin_build: PluginBuild
) -> None:
    found = {(one.kernel.architecture, one.storage, one.packs) for one in kernels}
    assert found == {
        (architecture, storage, packs) for architecture in ARCHITECTURES for storage in MUFU for packs in (1, 2)
    }
    assert sass.read_ptx_architectures(cuobjdump, plugin_build.library) == ("sm_90",)


def test_main_loops_move_sixteen_bytes_an_instruction(kernels: list) -> None:
    for one in kernels:
        opcodes = [instruction.opcode for instruction in one.main_loop]
        loads = [opcode for opcode in opcodes if opcode.startswith("LDG")]
        stores = [opcode for opcode in opcodes if opcode.startswith("STG")]
        assert len(loads) == len(stores) == one.packs
        assert all(opcode.startswith("LDG.E.128") for opcode in loads)
        assert all(opcode.startswith("STG.E.128") for opcode in stores)


def test_loads_are_in_flight_together(kernels: list) -> None:
    """All loads of a round are issued before the first arithmetic that could wait for one of them."""
    for one in kernels:
        opcodes = [instruction.opcode for instruction in one.main_loop]
        last_load = max(index for index, opcode in enumerate(opcodes) if opcode.startswith("LDG"))
        first_arithmetic = next(index for index, opcode in enumerate(opcodes) if opcode.startswith(("FMUL", "HADD2")))
        assert last_load < first_arithmetic


def test_no_local_memory_no_spills_no_subroutines(cuobjdump: Path, kernels: list, plugin_build: PluginBuild) -> None:
    for one in kernels:
        mnemonics = {instruction.opcode.split(".")[0] for instruction in one.kernel.instructions}
        # RET, not CALL: ptxas also writes a loop's exit as a CALL to the next instruction.
        assert mnemonics.isdisjoint({"LDL", "STL", "RET", "BAR", "LDS", "STS"})
    usage = sass.read_usage(cuobjdump, plugin_build.library)
    assert len(usage) == len(kernels)
    for row in usage:
        assert row.stack_bytes == row.local_bytes == 0
        assert row.registers <= 40, "six blocks of 256 threads stay resident"


def test_the_launcher_can_only_launch(tmp_path: Path) -> None:
    """What nvcc's object of the kernel calls of CUDA: a launch, and nothing that asks, allocates, copies or waits."""
    try:
        toolkit = find_cuda_toolkit()
    except BackendUnavailable as missing:
        pytest.skip(f"{missing} ({missing.hint})")
    compile_ = [str(toolkit.nvcc.path), "-std=c++17", "-arch=sm_90", "-I", str(PLUGINS), "-c", "-o", "kernel.o"]
    subprocess.run([*compile_, str(PLUGINS / "gelu" / "kernel.cu")], cwd=tmp_path, check=True, capture_output=True)
    if shutil.which("nm") is None:
        pytest.skip("nm (binutils) is not here")
    undefined = subprocess.run(
        ["nm", "-u", "kernel.o"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    called = {line.split()[-1] for line in undefined.splitlines() if "cuda" in line}
    launching = {name for name in called if name.startswith("__cuda")} | {"cudaLaunchKernel"}
    assert called - launching == {"cudaGetLastError"}
    # Allocating on the host would be one of these, and the C++ runtime's own.
    allocators = ("malloc", "calloc", "realloc", "_Zn")
    assert not [line for line in undefined.splitlines() if line.split()[-1].startswith(allocators)]


def test_instructions_per_element(kernels: list, measured: list[str]) -> None:
    for one in kernels:
        loop = one.main_loop
        per_element = len(loop) / one.elements
        if one.packs == 2:
            assert per_element <= MOST_INSTRUCTIONS[one.storage]
            measured.append(
                f"{one.storage.lower()} {one.kernel.architecture}: {per_element:.1f} instructions per element"
            )
        assert sass.pipes(loop)["mufu"] == MUFU[one.storage] * one.elements


def test_fp32_uses_one_approximation_only_and_refines_it(kernels: list) -> None:
    """The claim that the CPU computes the GPU's bits rests on it: everything else is IEEE arithmetic, unflushed."""
    for one in kernels:
        if one.storage == "Fp32":
            opcodes = {instruction.opcode for instruction in one.kernel.instructions}
            assert {opcode for opcode in opcodes if opcode.startswith("MUFU")} == {"MUFU.RCP"}
            assert not any("FTZ" in opcode for opcode in opcodes if opcode.startswith(("FMUL", "FADD", "FFMA")))


def test_the_readme_states_what_was_counted(plugin_build: PluginBuild, cuobjdump: Path) -> None:
    if "cuda_13.0." not in plugin_build.facts.nvcc_version:
        pytest.skip(f"the README's table is nvcc 13.0's, this is {plugin_build.facts.nvcc_version}")
    code = (
        "import pathlib, sys; sys.path.insert(0, sys.argv[1]); import tables; library = pathlib.Path(sys.argv[2]); "
        "sys.stdout.write(tables.kernel_table(library) + '\\f' + tables.floor_table(library))"
    )
    command = [sys.executable, "-c", code, str(PLUGINS / "measure"), str(plugin_build.library)]
    tables = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\f")
    readme = (PLUGINS / "gelu" / "README.md").read_text()
    for table in tables:
        assert table in readme, "regenerate with: python plugins/measure/tables.py --write"
