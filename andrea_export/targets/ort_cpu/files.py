"""The graphs for onnxruntime's CPU provider as a user meets them: their files and their own inputs. No toolchain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from andrea_export.core.precision import OrtPrecision

Int8Decode = Literal["blockwise", "dynamic"]
PATTERNS = ("ort-cpu-*.onnx", "ort-cpu-*.onnx.data")
"""What the names of these files match, whichever recipe made them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrtCpuFiles:
    """The files of one precision, by their names inside a bundle."""

    decode: str
    prefill: str
    """The graph a prompt goes through; the same file as ``decode`` where one graph does both."""
    weights: str | None
    """The data file that is this precision's own; None where it has none."""
    rows_independent: bool
    """The decoding graph gives a row what it gives it alone: DynamicQuantizeMatMul rounds rows together, and
    MatMulNBits adds them up in another order than one row."""

    @property
    def all(self) -> tuple[str, ...]:
        """Every file, each once."""
        return tuple(dict.fromkeys(name for name in (self.decode, self.prefill, self.weights) if name is not None))


def files_of(precision: OrtPrecision, int8_decode: Int8Decode) -> OrtCpuFiles:
    """The names of one precision's files. They stand beside model.onnx, so that relative weights resolve for anyone."""
    name = f"ort-cpu-{precision}"
    blockwise = int8_decode == "blockwise"
    two_graphs = precision == "int4" or (precision == "int8" and blockwise)
    return OrtCpuFiles(
        decode=f"{name}.onnx",
        prefill=f"{name}-prefill.onnx" if two_graphs else f"{name}.onnx",
        weights=None if precision == "fp32" else f"{name}.onnx.data",
        rows_independent=precision == "fp32",
    )
