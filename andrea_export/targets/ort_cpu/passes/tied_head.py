"""The head without a transposed copy of its matrix, which is the token embedding unless the model has another."""

from __future__ import annotations

import onnx_ir as ir

from andrea_export.core.errors import PassError
from andrea_export.graph.passes.graph_edits import HINT, MS_DOMAIN, graph_output, node_beside, producer_of, replace_node

EMBEDDING, HEAD = "token_embed.weight", "head.weight"


class TiedHead(ir.passes.InPlacePass):
    """The head multiplies with its matrix as it is stored: ``FusedMatMul(transB)``, one matrix in memory.

    onnxruntime would fold the canonical Transpose of a constant into a second matrix when it loads the file.

    Requires: the canonical head. Ensures: no Transpose of its matrix. Raises: PassError. Source:
    https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.FusedMatMul
    """

    def requires(self, model: ir.Model) -> None:
        """Checks that there is one head."""
        head_of(model)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replaces the product and drops the Transpose."""
        graph = model.graph
        head = head_of(model)
        inputs = [head.inputs[0], head_matrix(head)]
        fused = node_beside(head, "FusedMatMul", inputs, str(head.name), domain=MS_DOMAIN, attributes={"transB": 1})
        replace_node(graph, head, fused)
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """Checks that nothing transposes the embedding."""
        for name in (EMBEDDING, HEAD):
            matrix = model.graph.initializers.get(name)
            if matrix is not None and any(use.node.op_type == "Transpose" for use in matrix.uses()):
                raise PassError(f"{name} is still transposed")


def head_of(model: ir.Model) -> ir.Node:
    """The canonical head: MatMul of the final norm with a transposed matrix. Raises PassError if it is not so."""
    head = producer_of(graph_output(model.graph, "logits"), "MatMul")
    if head_matrix(head) not in model.graph.initializers.values():
        raise PassError("the head does not multiply with a transposed weight", hint=HINT)
    return head


def head_matrix(head: ir.Node) -> ir.Value:
    """The matrix ``[V, C]`` that a canonical head multiplies with, transposed. Raises PassError if there is none."""
    matrix = producer_of(head.inputs[1], "Transpose").inputs[0]
    assert matrix is not None
    return matrix
