"""Preflight of a plugin library: which operators it offers, and whether it has the one a graph asks for."""

import json
import platform
import signal
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from andrea_export.core.errors import PluginError
from andrea_export.operators import creators_probe
from andrea_export.operators.sources import CustomOp

_SECONDS = 120
# ELF's e_machine: https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.eheader.html
_MACHINES = {62: "x86_64", 183: "aarch64"}
_REBUILD = "build it again with `andrea-export build`, or name another library"


@dataclass(frozen=True, slots=True, kw_only=True)
class Creator:
    """One plugin creator: the three names under which TensorRT looks a plugin up, and its interface kind."""

    name: str
    version: str
    namespace: str
    kind: str

    def __str__(self) -> str:
        return f"{self.name} version {self.version} in namespace {self.namespace!r}"


def read_creators(library: Path) -> tuple[Creator, ...]:
    """The creators a plugin library offers, asked of it in a child process.

    Raises: PluginError, with the reason, if it is missing, not a library of this machine, cannot be loaded,
    crashes, or lacks ``getCreators``.
    """
    _check_elf(library)
    command = [sys.executable, "-I", str(Path(creators_probe.__file__).resolve()), str(library.resolve())]
    try:
        finished = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PluginError(f"{library} did not answer getCreators in {_SECONDS} s", hint=_REBUILD) from error
    answers = [line for line in finished.stdout.splitlines() if line.startswith(creators_probe.MARK)]
    if finished.returncode < 0:
        name = signal.Signals(-finished.returncode).name
        raise PluginError(f"{library} crashed the process that loaded it ({name})", hint=_REBUILD)
    if finished.returncode != 0 or not answers:
        last = (finished.stderr.strip().splitlines() or ["no output"])[-1]
        raise PluginError(
            f"{library} ended the process that loaded it (exit code {finished.returncode}): {last}",
            hint=_REBUILD,
        )
    answer = json.loads(answers[-1].removeprefix(creators_probe.MARK))
    if "error" not in answer:
        return tuple(Creator(**row) for row in answer["creators"])
    if answer["error"] == "load":
        raise PluginError(f"{library} cannot be loaded: {answer['detail']}", hint=_REBUILD)
    if answer["error"] == "symbol":
        raise PluginError(
            f"{library} is not a TensorRT plugin library: it exports no {answer['detail']}",
            hint="a V3 plugin library exports getCreators and setLoggerFinder; " + _REBUILD,
        )
    raise PluginError(f"{library} offers no usable creators: {answer['detail']}", hint=_REBUILD)


def check_library(library: Path, op: CustomOp) -> Creator:
    """The library's creator of `op`: same name, version and namespace, so that TensorRT will find it.

    Raises: PluginError naming what is there and what was wanted; and as read_creators does.
    """
    wanted = Creator(
        name=op.op_type, version=op.plugin_version, namespace=op.plugin_namespace, kind="PLUGIN CREATOR_V3ONE"
    )
    offered = read_creators(library)
    for creator in offered:
        if creator == wanted:
            return creator
    there = "; ".join(f"{creator} ({creator.kind})" for creator in offered) or "no creator at all"
    raise PluginError(
        f"{library}: the graph asks for {wanted} ({wanted.kind}), the library offers {there}", hint=_REBUILD
    )


def _check_elf(library: Path) -> None:
    """Refuses what is not a shared library of this machine, before any of its code runs."""
    try:
        with library.open("rb") as file:
            header = file.read(64)
    except OSError as error:
        raise PluginError(f"{library}: cannot be read: {error.strerror}", hint=_REBUILD) from error
    if len(header) < 64 or header[:4] != b"\x7fELF":
        raise PluginError(f"{library}: expected a shared library (ELF), found another kind of file", hint=_REBUILD)
    machine = struct.unpack("<H" if header[5] == 1 else ">H", header[18:20])[0]
    built_for = _MACHINES.get(machine, f"ELF machine {machine}")
    here = platform.machine()
    if here in _MACHINES.values() and built_for != here:
        raise PluginError(
            f"{library}: built for {built_for}, this machine is {here}",
            hint="build the plugin on the machine, or for the machine, that is to load it",
        )
