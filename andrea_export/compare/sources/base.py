"""What a source is, whatever it is made of, and whether two of them can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from andrea_export.compare.inputs import Case
from andrea_export.compare.runs import LayerRun
from andrea_export.compare.trace_file import TraceFile
from andrea_export.core.dtypes import DTYPES
from andrea_export.core.errors import MismatchError
from andrea_export.core.precision import PRECISIONS
from andrea_export.core.profile import Profile
from andrea_export.sessions.base import Session
from andrea_export.weights.origin import WeightsOrigin
from andrea_model.config import AndreaConfig

if TYPE_CHECKING:
    from andrea_model.model import Andrea

WHAT_CAN_BE_COMPARED = "give a checkpoint, an ONNX file, a bundle (DIR or DIR#tensorrt-rtx-fp16) or a recorded trace"
"""The hint to whoever gave what is no source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a source is, as a report states it."""

    name: str
    """``torch-fp64``, ``onnxruntime-cpu``, ``tensorrt-rtx-fp16``; a trace has the name of what was recorded."""
    kind: str
    precision: str
    config: AndreaConfig
    weights: str
    """Where the weights came from, in words."""
    origin: str
    """The same as one key: the checkpoint's sha256, or the seed and preset."""
    provenance: Mapping[str, str]


class Source(Protocol):
    """Something that can be compared."""

    identity: Identity
    shows_layers: bool
    """False where only the graph's outputs can be had: the rest is fused away."""
    facts: Mapping[str, object]
    """What else is known of it, for the report."""
    profile: Profile | None
    """The shapes it can run, where it cannot run all."""

    def layers(self, cases: Sequence[Case]) -> LayerRun:
        """A run over the cases. Raises: BackendUnavailable, RunError, TraceError."""
        ...

    def session(self) -> Session | None:
        """The whole model as it ships; None for a trace, which cannot be run. Raises: BackendUnavailable, RunError."""
        ...

    def weights(self) -> Andrea | None:
        """The torch model with the source's weights, from which budgets derive; None where there is none."""
        ...

    def recorded(self) -> TraceFile | None:
        """The trace, if it is one."""
        ...


def same_model(reference: Identity, candidate: Identity) -> None:
    """Raises MismatchError naming every difference of shape, or a trace of other weights."""
    ours, theirs = reference.config, candidate.config
    different = [
        f"{key} {getattr(theirs, key)} (reference: {getattr(ours, key)})"
        for key in AndreaConfig.__dataclass_fields__
        if getattr(ours, key) != getattr(theirs, key)
    ]
    if different:
        raise MismatchError(
            f"candidate {candidate.name} is of another architecture: {', '.join(different)}",
            hint="compare two files of one model",
        )
    if "trace" in (reference.kind, candidate.kind) and reference.origin != candidate.origin:
        raise MismatchError(
            f"the trace is of another model: the candidate {candidate.name} has {candidate.weights}, "
            f"the reference {reference.name} {reference.weights}",
            hint="record it again from the model it is compared with",
        )


def origin_key(origin: WeightsOrigin) -> str:
    """One key for where weights came from, whatever the checkpoint's file is called."""
    return origin.checkpoint_sha256 or f"seed {origin.seed} of {origin.preset}"


def cache_dtype_of(precision: str) -> np.dtype[Any]:
    """The type of a source's past and present keys and values."""
    return DTYPES[PRECISIONS[precision].cache_dtype].numpy
