"""What this machine can do, step by step: each step of a build and a run, whether it can be done, and what brings it.

Works where nothing but the standard library is installed: a package is looked for before anything is imported from it,
and what a package must be is read from this distribution's own metadata.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from andrea_export import __version__
from andrea_export.core.gpu import why_no_gpu

if TYPE_CHECKING:
    from andrea_export.sessions.base import Availability

DISTRIBUTION = "andrea-export"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStatus:
    """One step: whether this machine can do it, with what or what is missing (``detail``), and what brings it."""

    name: str
    what: str
    available: bool
    detail: str
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """The machine in one line, and every step in the order of a build."""

    machine: str
    steps: tuple[StepStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found for one step."""

    available: bool
    detail: str
    hint: str | None = None


def examine() -> Examination:
    """Looks at everything, starts no build and opens no model."""
    return Examination(
        machine=_machine(),
        steps=tuple(
            StepStatus(
                name=name,
                what=what,
                available=found.available,
                detail=found.detail,
                hint=_missing_extras_only(found.hint) if found.hint else None,
            )
            for name, what, look in _STEPS
            for found in (look(),)
        ),
    )


def examination_as_json(examination: Examination) -> dict[str, Any]:
    """The examination as plain JSON values."""
    return {"andrea_export": __version__, **asdict(examination)}


# --- packages --------------------------------------------------------------------------------------------------------

_REQUIREMENT = re.compile(
    r"""^(?P<name>[A-Za-z0-9._-]+)\s*(?P<spec>[<>=!~][^;]*)?(?:;(?P<marker>.*))?$""",
)
_EXTRA = re.compile(r"""extra\s*==\s*['"](?P<extra>[^'"]+)['"]""")
_EXTRAS_OF_HINT = re.compile(rf"'{DISTRIBUTION}\[(?P<extras>[a-z,]+)\]'(?P<more>(?: [a-z][a-z0-9-]+)*)")
_MINIMUM = re.compile(r"(?:>=|==)\s*([0-9]+(?:\.[0-9]+)*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One package this distribution asks for: its name, and the version specifier as written (empty if none)."""

    name: str
    specifier: str

    def problem(self) -> str | None:
        """None if it is installed and new enough, else what is wrong; an ``==`` pin is held up to its ``.*``."""
        try:
            version = importlib.metadata.version(self.name)
        except importlib.metadata.PackageNotFoundError:
            return f"{self.name} is not installed"
        minimum = _MINIMUM.search(self.specifier)
        if minimum is None:
            return None
        wanted, found = _numbers(minimum.group(1)), _numbers(version)
        holds = found[: len(wanted)] == wanted if "==" in self.specifier else found >= wanted
        return None if holds else f"{self.name} is {version}, expected {self.specifier}"


def requirements(extra: str | None) -> tuple[Requirement, ...]:
    """What this distribution asks for: the base packages (None), or those of one extra.

    Of the markers ``extra`` alone is evaluated; a package for some Python versions only is left out.
    """
    found = []
    for text in importlib.metadata.requires(DISTRIBUTION) or ():
        match = _REQUIREMENT.match(text)
        if match is None:
            continue
        marker = match.group("marker") or ""
        named = _EXTRA.search(marker)
        if (named.group("extra") if named else None) != extra or "python_version" in marker:
            continue
        found.append(Requirement(name=match.group("name"), specifier=(match.group("spec") or "").strip()))
    return tuple(found)


def _base() -> Finding:
    """Whether the packages every step needs are here, each missing one named."""
    hint = f"pip install {DISTRIBUTION}"
    try:
        wanted = requirements(None)
    except importlib.metadata.PackageNotFoundError:
        return Finding(available=False, detail=f"{DISTRIBUTION} itself is not installed", hint=hint)
    problems = [problem for requirement in wanted if (problem := requirement.problem()) is not None]
    if problems:
        return Finding(available=False, detail="; ".join(problems), hint=hint)
    shown = (name for name in ("torch", "onnx", "onnx-ir") if name in {requirement.name for requirement in wanted})
    return Finding(available=True, detail=", ".join(f"{name} {importlib.metadata.version(name)}" for name in shown))


def _numbers(version: str) -> tuple[int, ...]:
    """The release numbers of a version: ``2.13.0+cpu`` → (2, 13, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[+a-z-]", version)[0]))


# --- steps -----------------------------------------------------------------------------------------------------------


Look = Callable[[], Finding]


def _each(*looks: Look) -> Look:
    """All of these in order: the first that is missing, else the last."""

    def look() -> Finding:
        found = Finding(available=True, detail="")
        for one in looks:
            found = one()
            if not found.available:
                break
        return found

    return look


def _and_a_gpu(look: Look) -> Look:
    """This and a GPU. Where there is no GPU, nothing that is installed here would help: the hint says so."""

    def both() -> Finding:
        found, gpu = look(), _gpu()
        if gpu.available:
            return found
        if found.available or found.detail == gpu.detail:
            return gpu
        if gpu.detail in found.detail:  # it has said so itself
            return found
        command = f": {found.hint}" if found.hint else ""
        return Finding(
            available=False,
            detail=f"{gpu.detail}; {found.detail}",
            hint=f"on a machine with an NVIDIA GPU and its driver{command}",
        )

    return both


def _base_above() -> Finding:
    """The packages every step needs, for the steps after the one that names each."""
    found = _base()
    return found if found.available else replace(found, detail="needs what export needs, above")


def _missing_extras_only(hint: str) -> str:
    """The hint without the extras that are installed already, unless nothing else would be left of it."""

    def is_missing(extra: str) -> bool:
        return any(requirement.problem() is not None for requirement in requirements(extra))

    def shorter(found: re.Match[str]) -> str:
        missing = [extra for extra in found.group("extras").split(",") if is_missing(extra)]
        if missing:
            return f"'{DISTRIBUTION}[{','.join(missing)}]'{found.group('more')}"
        return found.group("more").lstrip() or found.group()

    try:
        return _EXTRAS_OF_HINT.sub(shorter, hint)
    except importlib.metadata.PackageNotFoundError:
        return hint


def _compile_plugin() -> Finding:
    if os.name != "posix" or platform.system() != "Linux":
        return Finding(available=False, detail=f"the plugin is built on Linux, this is {platform.system()}")

    from andrea_export.operators.toolchain import compiler_status

    tools = compiler_status()
    here = [f"{tool.name} {_number_in(tool.version)}" for tool in tools if tool.found]
    missing = [tool for tool in tools if not tool.found]
    packages = _base_above()
    hints = dict.fromkeys(tool.hint for tool in missing if tool.hint)
    if not packages.available and packages.hint:
        hints = {packages.hint: None, **hints}
    if missing or not packages.available:
        problems = [f"{tool.name} is missing" for tool in missing]
        problems += [] if packages.available else [packages.detail]
        return Finding(
            available=False,
            detail="; ".join(problems) + (f" (here: {', '.join(here)})" if here else ""),
            hint="; ".join(hints) or None,
        )
    return Finding(available=True, detail=", ".join(here))


def _number_in(text: str | None) -> str:
    """The first version number in a tool's own words: ``cmake version 4.4.5`` → ``4.4.5``."""
    found = re.search(r"\d+(?:\.\d+)+", text or "")
    return found.group() if found else "of unknown version"


def _engine_builder(target: str) -> Look:
    def look() -> Finding:
        from andrea_export.targets.engines import engine_backend

        return _finding(engine_backend(target).can_build())

    return look


def _engine_runner(target: str) -> Look:
    def look() -> Finding:
        from andrea_export.targets.engines import engine_backend

        return _finding(engine_backend(target).can_run())

    return look


def _provider(name: str) -> Look:
    def look() -> Finding:
        from andrea_export.sessions.onnxruntime import provider_availability

        return _finding(provider_availability(name))

    return look


def _finding(status: Availability) -> Finding:
    """A backend's own answer as a finding."""
    versions = ", ".join(f"{name} {version}" for name, version in status.versions.items())
    return Finding(available=status.available, detail=versions if status.available else status.reason, hint=status.hint)


def _gpu() -> Finding:
    """An NVIDIA GPU that CUDA can use, as every backend asks for it; nvidia-smi only adds its name."""
    if reason := why_no_gpu():
        return Finding(
            available=False, detail=reason, hint="on a machine that has an NVIDIA GPU, install NVIDIA's driver"
        )
    return Finding(available=True, detail=_gpu_names() or "the driver finds one; there is no nvidia-smi to name it")


def _gpu_names() -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    query = [tool, "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, errors="replace", timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (
        "; ".join(line.strip() for line in answer.stdout.splitlines() if line.strip()) if not answer.returncode else ""
    )


_STEPS: tuple[tuple[str, str, Look], ...] = (
    ("export", "torch model to canonical ONNX", _base),
    ("validate", "layer by layer against torch, on the CPU", _each(_base_above, _provider("cpu"))),
    ("compile-plugin", "compile the TensorRT plugin (g++, nvcc, cmake, ninja)", _compile_plugin),
    (
        "build-tensorrt-rtx",
        "build TensorRT-RTX engines (no GPU needed)",
        _each(_base_above, _compile_plugin, _engine_builder("tensorrt-rtx")),
    ),
    (
        "build-tensorrt",
        "build TensorRT engines (on the GPU they are for)",
        _each(_base_above, _compile_plugin, _and_a_gpu(_engine_builder("tensorrt"))),
    ),
    ("run-cpu", "run the ONNX file with onnxruntime on the CPU", _each(_base_above, _provider("cpu"))),
    ("gpu", "an NVIDIA GPU and its driver", _gpu),
    # onnxruntime-gpu lists its CUDA provider on a machine without a GPU too.
    ("run-cuda", "run it with onnxruntime on CUDA", _each(_base_above, _and_a_gpu(_provider("cuda")))),
    (
        "run-tensorrt",
        "run it with onnxruntime through TensorRT",
        _each(_base_above, _and_a_gpu(_provider("tensorrt"))),
    ),
    (
        "run-tensorrt-rtx",
        "run it with onnxruntime through TensorRT-RTX",
        _each(_base_above, _and_a_gpu(_provider("tensorrt-rtx"))),
    ),
    (
        "run-engines-tensorrt-rtx",
        "run TensorRT-RTX engines, and measure them",
        _each(_base_above, _and_a_gpu(_engine_runner("tensorrt-rtx"))),
    ),
    (
        "run-engines-tensorrt",
        "run TensorRT engines, and measure them",
        _each(_base_above, _and_a_gpu(_engine_runner("tensorrt"))),
    ),
)
STEP_NAMES = tuple(name for name, _, _ in _STEPS)


def _machine() -> str:
    """Program, Python and platform, in one line."""
    return (
        f"andrea-export {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()} CPUs"
    )
