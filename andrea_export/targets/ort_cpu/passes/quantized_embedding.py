"""The tied matrix in 8 bits, once: the embedding gathers from the very bytes the head multiplies with."""

from __future__ import annotations

import onnx_ir as ir

from andrea_export.core.errors import PassError
from andrea_export.graph.passes.graph_edits import MS_DOMAIN, array_of, constant, node_beside, nodes_of, replace_node
from andrea_export.targets.ort_cpu.passes.blockwise_weights import nbits_attributes
from andrea_export.targets.ort_cpu.passes.tied_head import EMBEDDING, head_of
from andrea_export.targets.ort_cpu.quantization import block_codes, widest_block

ROWS, BLOCKS = "token_embed.weight_rows_int8", "token_embed.weight_block_int8"
"""One array under two shapes, ``[V, C]`` and ``[V, C / block, block]``: a writer may store it once."""


class QuantizedEmbedding(ir.passes.InPlacePass):
    """``GatherBlockQuantized`` for the embedding and ``MatMulNBits`` for the head, on the same codes and scales.

    8 bits, a scale for every ``widest_block`` of a token's C numbers.

    Requires: the canonical embedding and head. Ensures: no fp32 copy of the matrix. Raises: PassError. Source:
    https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.GatherBlockQuantized
    """

    def requires(self, model: ir.Model) -> None:
        """Checks head and embedding."""
        head_of(model)
        _gather_of(model)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replaces both."""
        graph = model.graph
        head, gather = head_of(model), _gather_of(model)
        matrix_VC = array_of(graph.initializers[EMBEDDING])
        v, c = matrix_VC.shape
        block_size = widest_block(c)
        quantized = block_codes(matrix_VC.T, bits=8, block_size=block_size)
        rows = constant(graph, ROWS, quantized.codes.reshape(v, c))
        blocks = constant(graph, BLOCKS, quantized.codes)
        scales = constant(graph, "token_embed.weight_block_scale", quantized.scales)
        new_gather = node_beside(
            gather,
            "GatherBlockQuantized",
            [rows, gather.inputs[1], scales],
            str(gather.name),
            domain=MS_DOMAIN,
            attributes={"block_size": block_size, "bits": 8, "gather_axis": 0, "quantize_axis": 1},
        )
        new_head = node_beside(
            head,
            "MatMulNBits",
            [head.inputs[0], blocks, scales],
            str(head.name),
            domain=MS_DOMAIN,
            attributes=nbits_attributes(c, v, bits=8, block_size=block_size),
        )
        replace_node(graph, gather, new_gather)
        replace_node(graph, head, new_head)
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """Checks that the fp32 matrix is gone."""
        if EMBEDDING in model.graph.initializers:
            raise PassError(f"{EMBEDDING} is still read by the graph")


def _gather_of(model: ir.Model) -> ir.Node:
    for node in nodes_of(model, "Gather"):
        if node.inputs[0] is model.graph.initializers.get(EMBEDDING):
            return node
    raise PassError(f"the graph has no Gather from {EMBEDDING}")
