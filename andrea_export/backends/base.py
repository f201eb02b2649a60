"""What every backend is: how it says what it can do here, what it is asked to build, what it answers, how it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from andrea_export.progress import Progress
from andrea_export.targets import EngineTarget, PrecisionName
from andrea_model.config import AndreaConfig

if TYPE_CHECKING:
    from andrea_export.recipe import Profile

Feeds = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """Whether this machine can do one thing; if not, why, and the command that brings it."""

    available: bool
    reason: str = ""
    hint: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One engine to build from a canonical ONNX file."""

    model: Path
    config: AndreaConfig
    target: EngineTarget
    precision: PrecisionName
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
    precision: PrecisionName
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


class EngineBackend(Protocol):
    """Builds and runs the engines of one target."""

    target: EngineTarget
    target_gpus: tuple[str, ...]
    """Compute capabilities its engines are for, or in words what they are bound to."""

    def can_build(self) -> Availability:
        """Whether engines can be built on this machine."""
        ...

    def can_run(self) -> Availability:
        """Whether engines can be run on this machine (they need a GPU and its driver)."""
        ...

    def build(self, request: EngineRequest, progress: Progress) -> EngineFacts:
        """Builds ``request.output``.

        Raises: BackendUnavailable, PluginError, BuildError (failed, crashed, out of time, unproven).
        """
        ...

    def open(self, engine: Path) -> Session:
        """A session on an engine. Raises: BackendUnavailable, RunError."""
        ...


class Session(Protocol):
    """Something that runs one model. Used as a context manager; what it holds is released at the end."""

    name: str
    """How reports call it: ``onnxruntime-cpu``, ``tensorrt-rtx-fp16``."""
    output_names: tuple[str, ...]

    def run(self, feeds: Feeds) -> dict[str, npt.NDArray[Any]]:
        """Every output for these inputs. Raises: RunError."""
        ...

    def close(self) -> None:
        """Releases what the session holds."""
        ...

    def __enter__(self) -> Session: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def zero_cache(config: AndreaConfig, *, batch: int, past: int, dtype: np.dtype[Any]) -> dict[str, npt.NDArray[Any]]:
    """Past keys and values of zeros, ``[B, H, P, D]`` each; with ``past=0`` the empty cache of a first step."""
    shape = (batch, config.n_head, past, config.d_head)
    return {
        f"past_key_values.{index}.{part}": np.zeros(shape, dtype)
        for index in range(config.n_layer)
        for part in ("key", "value")
    }
