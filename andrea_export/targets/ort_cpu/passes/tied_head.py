"""The head without a transposed copy of the token embedding."""

from __future__ import annotations

import onnx_ir as ir

from andrea_export.core.errors import PassError
from andrea_export.graph.passes.graph_edits import HINT, MS_DOMAIN, graph_output, node_beside, producer_of, replace_node

EMBEDDING = "token_embed.weight"


class TiedHead(ir.passes.InPlacePass):
    """The head multiplies with the embedding as it is stored: ``FusedMatMul(transB)``, one matrix in memory.

    onnxruntime would fold the canonical Transpose of a constant into a second matrix when it loads the file.

    Requires: the canonical head. Ensures: no Transpose of the embedding. Raises: PassError. Source:
    https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.FusedMatMul
    """

    def requires(self, model: ir.Model) -> None:
        """Checks that there is one head, and that it reads the embedding."""
        head_of(model)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replaces the product and drops the Transpose."""
        graph = model.graph
        head = head_of(model)
        inputs = [head.inputs[0], graph.initializers[EMBEDDING]]
        fused = node_beside(head, "FusedMatMul", inputs, str(head.name), domain=MS_DOMAIN, attributes={"transB": 1})
        replace_node(graph, head, fused)
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """Checks that nothing transposes the embedding."""
        readers = [use.node for use in model.graph.initializers[EMBEDDING].uses()]
        if any(node.op_type == "Transpose" for node in readers):
            raise PassError(f"{EMBEDDING} is still transposed")


def head_of(model: ir.Model) -> ir.Node:
    """The canonical head: MatMul of the final norm with the transposed embedding. Raises PassError if it is not so."""
    head = producer_of(graph_output(model.graph, "logits"), "MatMul")
    transpose = producer_of(head.inputs[1], "Transpose")
    if transpose.inputs[0] is not model.graph.initializers.get(EMBEDDING):
        raise PassError(f"the head does not multiply with the transposed {EMBEDDING}", hint=HINT)
    return head
