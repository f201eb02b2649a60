"""Reads the machine code of a compiled plugin or cubin, through cuobjdump, and counts what its kernels execute."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_PACK_BYTES = 16
_ELEMENT_BYTES = {"Fp32": 4, "Fp16": 2, "Bf16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One SASS instruction: its address and its text without the predicate."""

    address: int
    text: str

    @property
    def opcode(self) -> str:
        """Mnemonic with modifiers, as ``LDG.E.128``."""
        return self.text.split()[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel of one architecture, with what ptxas says it uses."""

    architecture: str
    symbol: str
    instructions: tuple[Instruction, ...]

    def loop_with_packs(self, packs: int) -> tuple[Instruction, ...]:
        """The shortest loop (backward branch) that loads exactly `packs` times 16 bytes; empty if there is none."""
        best: tuple[Instruction, ...] = ()
        for branch in self.instructions:
            target = re.search(r"\b0x([0-9a-f]+)\b", branch.text) if branch.opcode.startswith("BRA") else None
            if target is None or int(target.group(1), 16) >= branch.address:
                continue
            body = tuple(
                instruction
                for instruction in self.instructions
                if int(target.group(1), 16) <= instruction.address <= branch.address
            )
            loads = sum(instruction.opcode.startswith("LDG.E.128") for instruction in body)
            if loads == packs and (not best or len(body) < len(best)):
                best = body
        return best


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementwiseKernel:
    """A kernel of an operator, with the storage type and packs per thread that its name carries."""

    kernel: Kernel
    storage: str
    packs: int

    @property
    def main_loop(self) -> tuple[Instruction, ...]:
        """The loop a long array spends its time in."""
        return self.kernel.loop_with_packs(self.packs)

    @property
    def elements(self) -> int:
        """Elements a thread computes in one round of the main loop."""
        return self.packs * _PACK_BYTES // _ELEMENT_BYTES[self.storage]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What ptxas allotted a kernel."""

    architecture: str
    symbol: str
    registers: int
    stack_bytes: int
    local_bytes: int


def find_cuobjdump() -> Path | None:
    """cuobjdump with nvdisasm beside it or on PATH: from the environment's wheels, else from PATH."""
    try:
        spec = importlib.util.find_spec("nvidia.cu13")
    except ModuleNotFoundError:
        spec = None
    if spec is not None:
        for folder in spec.submodule_search_locations or ():
            candidate = Path(folder) / "bin" / "cuobjdump"
            if candidate.is_file() and candidate.with_name("nvdisasm").is_file():
                return candidate
    on_path = shutil.which("cuobjdump")
    return Path(on_path) if on_path is not None and shutil.which("nvdisasm") is not None else None


def read_kernels(cuobjdump: Path, binary: Path) -> tuple[Kernel, ...]:
    """Every kernel of every architecture in a library or cubin."""
    kernels = []
    architecture, symbol, instructions = "", "", list[Instruction]()
    for line in [*_run(cuobjdump, "-sass", binary).splitlines(), "\t\tFunction : end"]:
        if match := re.match(r"\s*arch = (sm_\w+)", line):
            next_architecture = match.group(1)
            if symbol:
                kernels.append(_kernel(architecture, symbol, instructions))
                symbol, instructions = "", []
            architecture = next_architecture
        elif match := re.search(r"Function : (\S+)", line):
            if symbol:
                kernels.append(_kernel(architecture, symbol, instructions))
            symbol, instructions = match.group(1), []
        elif match := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(.*?)\s*;", line):
            instructions.append(Instruction(address=int(match.group(1), 16), text=match.group(2)))
    return tuple(kernels)


def operator_kernels(kernels: tuple[Kernel, ...], operator: str) -> tuple[ElementwiseKernel, ...]:
    """The kernels among them that have the maths of `operator`, the name of its folder."""
    mangled = rf"elementwise_kernelINS_{len(operator)}{operator}\d\w*MathsINS_\d(Fp32|Fp16|Bf16)E\w*?_Li(\d+)E"
    found = []
    for kernel in kernels:
        match = re.search(mangled, kernel.symbol)
        if match:
            found.append(ElementwiseKernel(kernel=kernel, storage=match.group(1), packs=int(match.group(2))))
    return tuple(found)


def read_usage(cuobjdump: Path, binary: Path) -> tuple[Usage, ...]:
    """Registers, stack and local memory of every kernel."""
    rows = []
    architecture, symbol = "", ""
    for line in _run(cuobjdump, "-res-usage", binary).splitlines():
        if match := re.match(r"\s*arch = (sm_\w+)", line):
            architecture = match.group(1)
        elif match := re.search(r"Function (\S+):", line):
            symbol = match.group(1)
        elif match := re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", line):
            registers, stack, local = (int(number) for number in match.groups())
            rows.append(
                Usage(
                    architecture=architecture,
                    symbol=symbol,
                    registers=registers,
                    stack_bytes=stack,
                    local_bytes=local,
                )
            )
    return tuple(rows)


def read_ptx_architectures(cuobjdump: Path, binary: Path) -> tuple[str, ...]:
    """The architectures for which the binary carries PTX."""
    return tuple(re.findall(r"\.(sm_\w+)\.ptx", _run(cuobjdump, "-lptx", binary)))


def pipes(instructions: tuple[Instruction, ...]) -> Counter[str]:
    """Instructions by what limits them: ``fp32`` (FADD, FMUL, FFMA), ``mufu``, ``memory``, ``other``."""
    counts: Counter[str] = Counter()
    for instruction in instructions:
        mnemonic = instruction.opcode.split(".")[0]
        if mnemonic in ("FADD", "FADD2", "FMUL", "FMUL2", "FFMA", "FFMA2"):
            counts["fp32"] += 1
        elif mnemonic == "MUFU":
            counts["mufu"] += 1
        elif mnemonic in ("LDG", "STG"):
            counts["memory"] += 1
        else:
            counts["other"] += 1
    return counts


def _kernel(architecture: str, symbol: str, instructions: list[Instruction]) -> Kernel:
    # After the last EXIT or trap loop, NOPs fill the function up to its alignment: they are never executed.
    executed = tuple(instruction for instruction in instructions if instruction.opcode != "NOP")
    return Kernel(architecture=architecture, symbol=symbol, instructions=executed)


def _run(cuobjdump: Path, option: str, binary: Path) -> str:
    # cuobjdump starts nvdisasm by name.
    environment = {**os.environ, "PATH": f"{cuobjdump.parent}:{os.environ.get('PATH', '')}"}
    finished = subprocess.run(
        [str(cuobjdump), option, str(binary)], capture_output=True, text=True, env=environment, check=True
    )
    return finished.stdout
