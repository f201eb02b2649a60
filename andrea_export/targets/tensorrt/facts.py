"""Engines and their plugin as data: what an engine is asked to be, with which shapes, what its build proved,
and its entry in a bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from andrea_export.core.errors import UsageError
from andrea_export.core.names import graph_inputs
from andrea_export.core.precision import EnginePrecision, Precision
from andrea_export.core.profile import Profile
from andrea_export.targets.tensorrt.flavours import EngineTarget
from andrea_model.config import AndreaConfig


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


def profile_shapes(config: AndreaConfig, precision: Precision, profile: Profile) -> Mapping[str, list[list[int]]]:
    """Minimum, optimum and maximum shape of every graph input. Raises UsageError for a profile the model cannot have.

    The mask's length is past + sequence at each of the three, past ``n_ctx`` too: the builder checks that the shapes
    of one point agree. No run gets there, as there are no positions beyond ``n_ctx``.
    """
    check_profile(config, profile)
    sequence, past = profile.sequence, profile.past

    def shape(dims: Sequence[int | str], point: str) -> list[int]:
        sizes = {
            "batch": getattr(profile.batch, point),
            "sequence": getattr(sequence, point),
            "past": getattr(past, point),
            "total": getattr(sequence, point) + getattr(past, point),
        }
        return [sizes[dim] if isinstance(dim, str) else dim for dim in dims]

    return {
        spec.name: [shape(spec.dims, point) for point in ("min", "opt", "max")]
        for spec in graph_inputs(config, precision.cache_dtype)
    }


def check_profile(config: AndreaConfig, profile: Profile) -> None:
    """Raises UsageError for a profile that a model of this context cannot have, every reason named."""
    sequence, past = profile.sequence, profile.past
    problems = []
    if sequence.max > config.n_ctx:
        problems.append(f"sequence.max is {sequence.max}")
    if past.max >= config.n_ctx:
        problems.append(f"past.max is {past.max}, which leaves no place for a new token")
    for point in ("min", "opt"):
        total = getattr(sequence, point) + getattr(past, point)
        if total > config.n_ctx:
            problems.append(f"sequence.{point} + past.{point} is {total}")
    if problems:
        raise UsageError(
            f"the profile does not fit a context of {config.n_ctx} tokens: {'; '.join(problems)}",
            hint="change the recipe's profile",
        )
