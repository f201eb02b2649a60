"""The graph's boundary: names, order and symbolic dimensions of what goes in and comes out."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from andrea_export.core.errors import ExportError
from andrea_export.core.names import TensorSpec, graph_inputs, graph_outputs
from andrea_model.config import AndreaConfig


def set_interface(graph: ir.Graph, config: AndreaConfig) -> None:
    """States the boundary's dimensions. Raises ExportError if the graph's names or their order differ."""
    _set_dims("inputs", graph_inputs(config), graph.inputs)
    _set_dims("outputs", graph_outputs(config), graph.outputs)
    graph.name = "andrea"
    for node in graph:
        for value in node.outputs:  # inner shapes are the exporter's guesses; every runtime infers its own
            if value not in graph.outputs:
                value.shape = None


def _set_dims(kind: str, specs: Sequence[TensorSpec], values: Sequence[ir.Value]) -> None:
    found, expected = [value.name for value in values], [spec.name for spec in specs]
    if found != expected:
        raise ExportError(f"the graph's {kind} are {found}, expected {expected}")
    for spec, value in zip(specs, values, strict=True):
        value.shape = ir.Shape(spec.dims)
