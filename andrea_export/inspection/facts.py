"""What an inspection can tell: data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from andrea_export.inspection.arithmetic import arithmetic_lines, parameter_counts
from andrea_model.config import AndreaConfig

WHAT_CAN_BE_INSPECTED = "give a checkpoint, an ONNX file, a TensorRT engine, or a bundle that andrea-export build made"

Kind = Literal["checkpoint", "published-checkpoint", "onnx", "engine", "plugin", "bundle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFact:
    """One input or output: its name, element type and dimensions (a str is dynamic)."""

    name: str
    dtype: str
    dims: tuple[int | str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Everything that could be told about one path without running it."""

    kind: Kind
    path: str
    num_bytes: int
    sha256: str | None
    """Of the file itself; None for a bundle, whose manifest holds one for each file."""
    config: AndreaConfig | None = None
    preset: str | None = None
    weights: str | None = None
    """Where the weights came from, in words."""
    trained: bool | None = None
    """None where the file does not say."""
    num_parameters: int | None = None
    """Counted from the tensors in the file, each once."""
    inputs: tuple[TensorFact, ...] = ()
    outputs: tuple[TensorFact, ...] = ()
    tensors: tuple[TensorFact, ...] = ()
    """A checkpoint's tensors, in the file's order."""
    num_nodes: Mapping[str, int] = field(default_factory=dict)
    """Operator type (with its domain where that is not ONNX's own) → nodes in the main graph."""
    made_by: Mapping[str, str] = field(default_factory=dict)
    """Producer, versions, precision, plugin: whatever the file or its manifest states."""
    notes: tuple[str, ...] = ()
    parts: tuple[Inspection, ...] = ()
    """A bundle's model, engines and plugin library."""

    @property
    def arithmetic(self) -> tuple[str, ...]:
        """The lesson's parameter arithmetic for this shape, and the count of what is really in the file."""
        if self.config is None:
            return ()
        lines = list(arithmetic_lines(self.config))
        if self.num_parameters is not None:
            expected = parameter_counts(self.config).exact
            agrees = "as computed" if self.num_parameters == expected else f"NOT the computed {expected:,}"
            lines.append(f"counted in this file: {self.num_parameters:,}, {agrees}")
        return tuple(lines)
