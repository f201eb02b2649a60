"""The steps of a build and a run, each with what is looked at: a row a step, in the order of a build."""

import os
import platform
import re
from dataclasses import dataclass, replace

from andrea_export import __version__
from andrea_export.doctor.findings import (
    Finding,
    Look,
    all_of,
    and_a_gpu,
    base_packages,
    finding_of,
    gpu,
    missing_extras_only,
    packages_above,
)
from andrea_export.operators.cpu_path import expected_path
from andrea_export.targets.tensorrt.flavours import FLAVOURS, Flavour, engine_backend

Step = tuple[str, str, Look]
"""Its name, what it is in words, and how it is looked for."""


def _compile_cpu() -> Finding:
    found = _compile(without=("nvcc",))
    return replace(found, detail=f"{found.detail}; this processor takes the path {expected_path()}")


def _compile_plugin() -> Finding:
    return _compile()


def _compile(without: tuple[str, ...] = ()) -> Finding:
    if os.name != "posix" or platform.system() != "Linux":
        return Finding(available=False, detail=f"plugins are built on Linux, this is {platform.system()}")

    from andrea_export.operators.toolchain import compiler_status

    tools, packages = [tool for tool in compiler_status() if tool.name not in without], packages_above()
    here = ", ".join(f"{tool.name} {_number_in(tool.version)}" for tool in tools if tool.found)
    missing = [tool for tool in tools if not tool.found]
    if packages.available and not missing:
        return Finding(available=True, detail=here)
    problems = [f"{tool.name} is missing" for tool in missing] + ([] if packages.available else [packages.detail])
    hints = ([] if packages.available else [packages.hint]) + [tool.hint for tool in missing]
    return Finding(
        available=False,
        detail="; ".join(problems) + (f" (here: {here})" if here else ""),
        hint="; ".join(dict.fromkeys(hint for hint in hints if hint)) or None,
    )


def _number_in(text: str | None) -> str:
    """The first version number in a tool's own words: ``cmake version 4.4.5`` → ``4.4.5``."""
    found = re.search(r"\d+(?:\.\d+)+", text or "")
    return found.group() if found else "of unknown version"


def _build_engines(flavour: Flavour) -> Step:
    """The row of building one flavour's engines."""

    def look() -> Finding:
        return finding_of(engine_backend(flavour.target).can_build())

    where = "no GPU needed" if flavour.builds_without_gpu else "on the GPU they are for"
    return (
        f"build-{flavour.target}",
        f"build {flavour.product} engines ({where})",
        all_of(packages_above, _compile_plugin, look if flavour.builds_without_gpu else and_a_gpu(look)),
    )


def _run_engines(flavour: Flavour) -> Step:
    """The row of running them."""
    return (
        f"run-engines-{flavour.target}",
        f"run {flavour.product} engines, and measure them",
        _on_a_gpu(lambda: finding_of(engine_backend(flavour.target).can_run())),
    )


def _provider(name: str) -> Look:
    def look() -> Finding:
        from andrea_export.sessions.onnxruntime import provider_availability

        return finding_of(provider_availability(name))

    return look


def _on_a_gpu(look: Look) -> Look:
    return all_of(packages_above, and_a_gpu(look))


_CPU = all_of(packages_above, _provider("cpu"))
# What can be built without a GPU first.
_FLAVOURS = sorted(FLAVOURS.values(), key=lambda flavour: not flavour.builds_without_gpu)

STEPS: tuple[Step, ...] = (
    ("export", "torch model to canonical ONNX", base_packages),
    ("validate", "layer by layer against torch, on the CPU", _CPU),
    ("compile-cpu", "compile the operators for int8 and int4 on the CPU (g++, cmake, ninja)", _compile_cpu),
    ("compile-plugin", "compile the TensorRT plugin (g++, nvcc, cmake, ninja)", _compile_plugin),
    *map(_build_engines, _FLAVOURS),
    ("run-cpu", "run the ONNX file with onnxruntime on the CPU", _CPU),
    ("gpu", "an NVIDIA GPU and its driver", gpu),
    # onnxruntime-gpu lists its CUDA provider on a machine without a GPU too.
    ("run-cuda", "run it with onnxruntime on CUDA", _on_a_gpu(_provider("cuda"))),
    ("run-tensorrt", "run it with onnxruntime through TensorRT", _on_a_gpu(_provider("tensorrt"))),
    ("run-tensorrt-rtx", "run it with onnxruntime through TensorRT-RTX", _on_a_gpu(_provider("tensorrt-rtx"))),
    *map(_run_engines, _FLAVOURS),
)
STEP_NAMES = tuple(name for name, _, _ in STEPS)


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


def examine() -> Examination:
    """Looks at everything, starts no build and opens no model."""
    found = []
    for name, what, look in STEPS:
        one = look()
        hint = missing_extras_only(one.hint) if one.hint else None
        found.append(StepStatus(name=name, what=what, available=one.available, detail=one.detail, hint=hint))
    num_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {num_cpus} CPUs"
    return Examination(machine=f"andrea-export {__version__}, {system}", steps=tuple(found))
