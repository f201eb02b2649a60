"""What differs between TensorRT and TensorRT-RTX, as data, and what their files in a bundle are called. Needs the
standard library alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from andrea_export.core.errors import UsageError

if TYPE_CHECKING:
    from andrea_export.targets.tensorrt.backend import EngineBackend


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """One flavour of TensorRT, which is one target."""

    target: EngineTarget
    product: str
    module: str
    distributions: tuple[str, ...]
    """Names under which the package may be installed, for its version."""
    extra: str
    polygraphy_rtx: str | None
    """The value of ``POLYGRAPHY_USE_TENSORRT_RTX``; None unsets it: Polygraphy takes any value for yes."""
    builds_without_gpu: bool
    """TensorRT-RTX's engines are finished on the GPU that runs them."""
    target_gpus: tuple[str, ...]
    """Compute capabilities its engines are for, or in words what they are bound to."""


FLAVOURS: dict[str, Flavour] = {
    row.target: row
    for row in (
        Flavour(  # 10.x and 11.x
            target="tensorrt",
            product="TensorRT",
            module="tensorrt",
            distributions=("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
            extra="tensorrt",
            polygraphy_rtx=None,
            builds_without_gpu=False,
            target_gpus=("the model of GPU it was built on",),
        ),
        Flavour(
            target="tensorrt-rtx",
            product="TensorRT-RTX",
            module="tensorrt_rtx",
            distributions=("tensorrt-rtx-cu13", "tensorrt-rtx-cu12", "tensorrt-rtx"),
            extra="rtx",
            polygraphy_rtx="1",
            builds_without_gpu=True,
            # Source: the support matrix of TensorRT-RTX 1.7 (Ampere, Ada and Blackwell; no Hopper).
            target_gpus=("8.0", "8.6", "8.9", "12.0", "12.1"),
        ),
    )
}
if TYPE_CHECKING:
    EngineTarget = str
else:  # what a file may say, checked by whoever reads it
    EngineTarget = Literal[tuple(FLAVOURS)]


def engine_backend(target: str) -> EngineBackend:
    """What builds and runs the engines of one target. Raises UsageError for a target that has none."""
    if target not in FLAVOURS:
        raise UsageError(f"unknown engine target '{target}'", hint=f"targets: {', '.join(FLAVOURS)}")
    from andrea_export.targets.tensorrt.backend import EngineBackend

    return EngineBackend(target)


PLUGIN = "plugins/libandrea_plugins.so"
PATTERNS = (PLUGIN, "engines/*.plan")


def engine_file(target: str, precision: str, *, native_twin: bool) -> str:
    """The engine of one target and precision: ``engines/tensorrt-rtx-fp16.plan``."""
    return f"engines/{target}-{precision}{'-native' if native_twin else ''}.plan"
