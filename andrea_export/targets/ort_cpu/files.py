"""The graphs for onnxruntime's CPU provider as a user meets them: their files and their own inputs. No toolchain."""

from dataclasses import dataclass

from andrea_export.core.precision import OrtPrecision

LIBRARY = "plugins/libandrea_cpu.so"
"""This project's operators for onnxruntime. Without it the graphs run their functions, several times slower."""
PATTERNS = ("ort-cpu-*.onnx", "ort-cpu-*.onnx.data", LIBRARY)
"""What the names of these files match, whichever recipe made them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrtCpuFiles:
    """The files of one precision, by their names inside a bundle."""

    graph: str
    weights: str | None
    """The data file that is this precision's own; None where it has none."""

    @property
    def all(self) -> tuple[str, ...]:
        """Every file."""
        return (self.graph,) if self.weights is None else (self.graph, self.weights)


def files_of(precision: OrtPrecision) -> OrtCpuFiles:
    """The names of one precision's files. They stand beside model.onnx, so that relative weights resolve for anyone."""
    graph = f"ort-cpu-{precision}.onnx"
    return OrtCpuFiles(graph=graph, weights=None if precision == "fp32" else f"{graph}.data")
