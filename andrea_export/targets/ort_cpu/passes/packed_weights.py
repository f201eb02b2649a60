"""Linear layers, head and embedding over packed integer weights: this project's own operators, one node for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from andrea_export.core.errors import PassError
from andrea_export.graph.passes.graph_edits import array_of, constant, node_beside, nodes_of, replace_node
from andrea_export.operators.linear import DOMAIN, EMBED, Linear, embed_function
from andrea_export.targets.ort_cpu.passes.linear_layers import linear_layers
from andrea_export.targets.ort_cpu.passes.tied_head import EMBEDDING, head_matrix, head_of
from andrea_export.targets.ort_cpu.quantization import Codes, block_codes, channel_codes, widest_block


class PackedLinears(ir.passes.InPlacePass):
    """Each named layer is one node, with the norm before it, and the GELU or the residual sum after it, in it.

    The node has the name of the last layer that is in it; the others have none any more.

    ``bits``: module path → 4 or 8. ``widest``: how many 4-bit weights share a scale, at most. Requires: the layers,
    canonical, K a multiple of 32 at 4 bits. Ensures: an ONNX function of every operator used. Raises: PassError.
    """

    def __init__(self, bits: Mapping[str, int], *, widest: int) -> None:
        super().__init__()
        self.bits, self.widest = bits, widest

    def requires(self, model: ir.Model) -> None:
        """Checks every layer's K."""
        wrong = [
            f"{layer.module} (K = {k})"
            for layer in linear_layers(model, tuple(self.bits))
            if self.bits[layer.module] == 4 and (k := len(array_of(layer.weight))) % 32
        ]
        if wrong:
            raise PassError(f"K is not a multiple of 32, the narrowest block: {', '.join(wrong[:8])}")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replaces each layer and its weight."""
        for module, bits in self.bits.items():
            (layer,) = linear_layers(model, (module,))
            weight = array_of(layer.weight)
            if bits == 4:
                codes = block_codes(weight, block_size=min(self.widest, widest_block(len(weight))))
            else:
                codes = channel_codes(weight)
            packed = _constants(model.graph, module, codes)
            n = weight.shape[1]
            bias = layer.bias or constant(model.graph, f"{module}.no_bias", np.zeros(n, np.float32))
            _replace(model, layer.last, layer.x, [*packed, bias], codes)
        return ir.passes.PassResult(model, modified=bool(self.bits))


class PackedEmbedding(ir.passes.InPlacePass):
    """The tied matrix in 8 bits, once: the head multiplies with it, ``Embed8`` takes a token's row out of it.

    One scale a token. The last norm is in the head's node, which has a bias of zeros. A head of its own has codes of
    its own.

    Requires: the canonical embedding and head. Ensures: no fp32 copy of the matrix. Raises: PassError.
    """

    def requires(self, model: ir.Model) -> None:
        """Checks head and embedding."""
        head_of(model)
        _gather_of(model)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replaces both."""
        graph = model.graph
        head, gather = head_of(model), _gather_of(model)
        own, matrix_VC = head_matrix(head), array_of(graph.initializers[EMBEDDING])
        codes = channel_codes(np.ascontiguousarray(matrix_VC.T))
        packed = _constants(graph, "token_embed", codes)
        width = {"width": matrix_VC.shape[1]}
        rows = node_beside(
            gather, EMBED, [gather.inputs[1], *packed], str(gather.name), domain=DOMAIN, attributes=width
        )
        replace_node(graph, gather, rows)
        _add_function(model, embed_function())
        if own.name != EMBEDDING:
            codes = channel_codes(np.ascontiguousarray(array_of(own).T))
            packed = _constants(graph, "head", codes)
        bias = constant(graph, "head.no_bias", np.zeros(len(matrix_VC), np.float32))
        _replace(model, head, head.inputs[0], [*packed, bias], codes)
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """Checks that the fp32 matrix is gone."""
        if EMBEDDING in model.graph.initializers:
            raise PassError(f"{EMBEDDING} is still read by the graph")


def _constants(graph: ir.Graph, module: str, codes: Codes) -> list[ir.Value | None]:
    packed, scales = codes.packed()
    return [
        constant(graph, f"{module}.weight_packed_int{codes.bits}", packed),
        constant(graph, f"{module}.weight_scale", scales),
    ]


def _replace(
    model: ir.Model, layer: ir.Node, x: ir.Value | None, weights: Sequence[ir.Value | None], codes: Codes
) -> None:
    """Puts one node in the place of a layer, of the norm before it, and of the GELU or the sum after it."""
    before = [] if x is None else [x]
    attributes: dict[str, int | float] = {"largest_activation": float(codes.largest_activation)}
    norm = None if x is None else x.producer()
    if norm is not None and (norm.op_type != "LayerNormalization" or len(norm.inputs) != 3 or len(norm.outputs) != 1):
        norm = None
    if norm is not None:
        before = [value for value in norm.inputs if value is not None]
        attributes["epsilon"] = norm.attributes["epsilon"].as_float()
    last, after = layer, []
    readers = [use.node for use in layer.outputs[0].uses()]
    reader = readers[0] if len(readers) == 1 and layer.outputs[0] not in model.graph.outputs else None
    gelu = reader is not None and reader.op_type == "Gelu"
    residual = reader is not None and reader.op_type == "Add" and norm is None
    if reader is not None and (gelu or residual):
        last = reader
        after = [value for value in reader.inputs if value is not layer.outputs[0]]
    form = Linear(bits=codes.bits, norm=norm is not None, gelu=gelu, residual=residual)
    node = node_beside(
        layer, form.op_type, [*before, *weights, *after], str(last.name), domain=DOMAIN, attributes=attributes
    )
    replace_node(model.graph, last, node)
    _add_function(model, form.function)


def _add_function(model: ir.Model, proto: onnx.FunctionProto) -> None:
    function = ir.serde.deserialize_function(proto)
    model.functions.setdefault(function.identifier(), function)


def _gather_of(model: ir.Model) -> ir.Node:
    for node in nodes_of(model, "Gather"):
        if node.inputs[0] is model.graph.initializers.get(EMBEDDING):
            return node
    raise PassError(f"the graph has no Gather from {EMBEDDING}")
