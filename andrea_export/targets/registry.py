"""The targets, one line each. What a line says costs nothing to know; a target's class is imported when it is used.

The choices on the command line, the types in files and every list of targets are derived from these lines.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from andrea_export.core.errors import UsageError
from andrea_export.core.precision import ENGINE_PRECISIONS, ORT_PRECISIONS

if TYPE_CHECKING:
    from andrea_export.targets.protocol import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One target: where its class is (``module:Class``), and what must be known of it before it is imported."""

    home: str
    precisions: tuple[str, ...] = ("fp32",)
    always: tuple[str, ...] = ()
    """Those it is built in whatever is asked for: they cost next to nothing."""


_HERE = "andrea_export.targets"
REGISTRY: dict[str, Row] = {
    "onnx": Row(home=f"{_HERE}.onnx.target:OnnxTarget"),
    "ort-cpu": Row(home=f"{_HERE}.ort_cpu.target:OrtCpuTarget", precisions=ORT_PRECISIONS, always=("fp32",)),
    "tensorrt": Row(home=f"{_HERE}.tensorrt.target:TensorRTTarget", precisions=ENGINE_PRECISIONS),
    "tensorrt-rtx": Row(home=f"{_HERE}.tensorrt.target:TensorRTTarget", precisions=ENGINE_PRECISIONS),
}
ALWAYS = "onnx"
"""The target that every bundle has: the others are derived from it."""


def target_of(name: str) -> Target:
    """The target of this name. Raises: UsageError for a name that is not a target's."""
    if name not in REGISTRY:
        raise UsageError(f"unknown target '{name}'", hint=f"targets: {', '.join(REGISTRY)}")
    module, _, kind = REGISTRY[name].home.partition(":")
    target: Target = getattr(importlib.import_module(module), kind)(name)
    return target


def in_build_order(names: Iterable[str]) -> tuple[Target, ...]:
    """These targets as a build takes them: in the table's order."""
    wanted = set(names)
    return tuple(target_of(name) for name in REGISTRY if name in wanted)
