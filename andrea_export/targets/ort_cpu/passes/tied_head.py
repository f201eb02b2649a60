"""The head without a transposed copy of the token embedding."""

from __future__ import annotations

import onnx_ir as ir

from andrea_export.core.errors import PassError
from andrea_export.core.metadata import MODULE_KEY
from andrea_export.graph.passes.graph_edits import (
    MS_DOMAIN,
    drop_dead_nodes,
    import_ms_domain,
    module_of,
    replace_output,
)

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
        fused = ir.Node(
            MS_DOMAIN,
            "FusedMatMul",
            [head.inputs[0], graph.initializers[EMBEDDING]],
            [ir.AttrInt64("transB", 1)],
            name=str(head.name),
            metadata_props={MODULE_KEY: module_of(head)},
        )
        graph.insert_after(head, fused)
        replace_output(graph, head.outputs[0], fused.outputs[0])
        drop_dead_nodes(graph)
        import_ms_domain(model)
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """Checks that nothing transposes the embedding."""
        readers = [use.node for use in model.graph.initializers[EMBEDDING].uses()]
        if any(node.op_type == "Transpose" for node in readers):
            raise PassError(f"{EMBEDDING} is still transposed")


def head_of(model: ir.Model) -> ir.Node:
    """The canonical head: MatMul of the final norm with the transposed embedding. Raises PassError if it is not so."""
    graph = model.graph
    logits = next((value for value in graph.outputs if value.name == "logits"), None)
    head = None if logits is None else logits.producer()
    if head is None or head.op_type != "MatMul":
        raise PassError("the graph has no MatMul that gives 'logits'")
    transpose = None if head.inputs[1] is None else head.inputs[1].producer()
    if (
        transpose is None
        or transpose.op_type != "Transpose"
        or transpose.inputs[0] is not graph.initializers.get(EMBEDDING)
    ):
        raise PassError(f"the head does not multiply with the transposed {EMBEDDING}")
    return head
