"""Engines and their plugin as data: what an engine is asked to be, what its build proved, and its entry in a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from andrea_export.core.precision import EnginePrecision
from andrea_export.core.profile import Profile
from andrea_export.targets.tensorrt.flavours import EngineTarget
from andrea_model.config import AndreaConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginFacts:
    """What the plugin library was compiled from, with what, and for which GPUs."""

    sources_sha256: str
    nvcc_version: str
    host_compiler: str
    architectures: tuple[str, ...]
    tensorrt_headers: str
    """``abi`` (this project's declarations) or the version of NVIDIA's headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEntry:
    """One engine of the bundle: its file, and what its build proved."""

    file: str
    native_twin: bool
    facts: EngineFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One engine to build from a canonical ONNX file."""

    model: Path
    config: AndreaConfig
    target: EngineTarget
    precision: EnginePrecision
    profile: Profile
    tf32: bool
    plugin_library: Path | None
    """The library to embed; None builds the native twin, whose GELUs are TensorRT's own."""
    timeout_s: int
    output: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What the build of one engine proved, as the child process that built it counted."""

    target: EngineTarget
    precision: EnginePrecision
    num_gelu_nodes: int
    num_plugin_layers: int
    gelu_implementations: Mapping[str, str]
    """Module path of each GELU → ``plugin com.andrea::AndreaGelu v1`` or ``native``."""
    num_network_layers: int
    plugin_embedded: bool
    """The plugin library's bytes were found verbatim in the engine."""
    tf32: bool
    tensorrt_version: str
    engine_bytes: int
    seconds: float
    peak_memory_bytes: int
