"""Makes layers visible: adds their values to the graph's outputs and changes nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from andrea_export.core.errors import PassError


class AddTaps(ir.passes.InPlacePass):
    """Every named layer's value is a graph output, after the outputs the graph already has.

    Requires: each name is a value of the graph. Ensures: the old outputs come first, unchanged, then the taps in the
    order given. Raises: PassError naming the layers that the graph does not have.
    """

    def __init__(self, layers: Sequence[str]) -> None:
        super().__init__()
        self.layers = tuple(layers)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Adds the outputs that are not there yet."""
        graph = model.graph
        values = {str(value.name): value for node in graph for value in node.outputs}
        missing = [layer for layer in self.layers if layer not in values]
        if missing:
            raise PassError(
                f"the graph has no value for {len(missing)} of {len(self.layers)} layers: {', '.join(missing[:8])}",
                hint="compare an ONNX file that andrea-export wrote",
            )
        present = {value.name for value in graph.outputs}
        added = [values[layer] for layer in self.layers if layer not in present]
        graph.outputs.extend(added)
        return ir.passes.PassResult(model, modified=bool(added))
