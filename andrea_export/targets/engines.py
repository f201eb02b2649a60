"""The registry of backends: name → where its class lives, imported on use. A backend is one file and one line here."""

from __future__ import annotations

import importlib

from andrea_export.core.errors import UsageError
from andrea_export.sessions.base import Availability
from andrea_export.targets.tensorrt.facts import EngineBackend

# Engine builders, by recipe target. Both flavours of TensorRT share one class.
_ENGINE_BACKENDS: dict[str, tuple[str, str]] = {
    "tensorrt": ("andrea_export.targets.tensorrt.backend", "TensorRT"),
    "tensorrt-rtx": ("andrea_export.targets.tensorrt.backend", "TensorRTRTX"),
}

__all__ = ["Availability", "EngineBackend", "engine_backend"]


def engine_backend(target: str) -> EngineBackend:
    """The builder of one engine target. Raises UsageError for a target that is none."""
    try:
        module, name = _ENGINE_BACKENDS[target]
    except KeyError:
        raise UsageError(f"unknown engine target '{target}'", hint=f"targets: {', '.join(_ENGINE_BACKENDS)}") from None
    backend: EngineBackend = getattr(importlib.import_module(module), name)()
    return backend
