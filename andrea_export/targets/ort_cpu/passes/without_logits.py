"""A graph that only fills the cache."""

from __future__ import annotations

import onnx_ir as ir

from andrea_export.core.errors import PassError
from andrea_export.graph.passes.graph_edits import drop_dead_nodes, graph_output


class WithoutLogits(ir.passes.InPlacePass):
    """The output ``logits`` and all that only it needs are gone: final norm, head, and the last block's MLP.

    Requires: an output ``logits``. Ensures: the other outputs are left, in their order. Raises: PassError.
    """

    def requires(self, model: ir.Model) -> None:
        """Checks that there are logits."""
        graph_output(model.graph, "logits")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Drops the output, then what is dead."""
        graph = model.graph
        graph.outputs.remove(graph_output(graph, "logits"))
        drop_dead_nodes(graph)
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """Checks that no logits are left and the cache is."""
        names = [str(value.name) for value in model.graph.outputs]
        if "logits" in names or not names:
            raise PassError(f"the graph's outputs are {names}, expected the new keys and values alone")
