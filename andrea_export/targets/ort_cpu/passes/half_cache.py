"""Keys and values kept in half precision, for graphs whose weights are rounded far more coarsely than that."""

from __future__ import annotations

import onnx_ir as ir

from andrea_export.core.errors import PassError
from andrea_export.graph.passes.graph_edits import MS_DOMAIN, cast_beside, nodes_of, replace_output


class HalfCache(ir.passes.InPlacePass):
    """Each ``GroupQueryAttention`` takes q, k and v in fp16, over past and present in fp16; its result is cast to fp32.

    Half the memory, and half of what a step reads of its past. fp16 rounds to 2⁻¹¹, 8-bit weights to 2⁻⁸ of an output's
    largest one. The kernel's scores and sums are fp32.

    Requires: ``SharedCache`` before it. Ensures: every past and present is fp16; the attention's name is that of its
    fp32 result. Raises: PassError.
    """

    def requires(self, model: ir.Model) -> None:
        """Checks that the caches are shared ones."""
        if not _attention_nodes(model):
            raise PassError("the graph has no GroupQueryAttention node: SharedCache makes them")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Puts a cast before and after each attention."""
        graph = model.graph
        for node in _attention_nodes(model):
            qkv, context = node.inputs[0], node.outputs[0]
            name = str(node.name)
            before = cast_beside(node, qkv, ir.DataType.FLOAT16, f"{name}/half", output=f"{name}/half:half_cache")
            graph.insert_before(node, before)
            node.replace_input_with(0, before.outputs[0])
            after = cast_beside(node, None, ir.DataType.FLOAT, name, output=f"{name}:half_cache")
            graph.insert_after(node, after)
            replace_output(graph, context, after.outputs[0])
            node.name, context.name = f"{name}/GroupQueryAttention", f"{name}/context_half"
            after.replace_input_with(0, context)
            for value in (context, *node.inputs[3:5], *node.outputs[1:]):
                assert value is not None
                value.type = ir.TensorType(ir.DataType.FLOAT16)
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """Checks the graph's own inputs and outputs."""
        for value in (*model.graph.inputs, *model.graph.outputs):
            if str(value.name).startswith(("past_key_values.", "present.")) and value.dtype != ir.DataType.FLOAT16:
                raise PassError(f"'{value.name}' is {value.dtype}, expected FLOAT16")


def _attention_nodes(model: ir.Model) -> list[ir.Node]:
    return nodes_of(model, "GroupQueryAttention", MS_DOMAIN)
