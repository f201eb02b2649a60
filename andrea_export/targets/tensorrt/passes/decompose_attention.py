"""Attention spelled out with fp32 scores: for fp16, and for parsers without Attention (TensorRT before 10.14)."""

import math

import numpy as np
import onnx_ir as ir

from andrea_export.core.errors import PassError
from andrea_export.graph.passes.graph_edits import (
    cast_beside,
    check_none_left,
    constant,
    graph_input,
    node_beside,
    nodes_of,
)

_FP32 = ir.DataType.FLOAT
# Finite, so that no runtime sees Inf − Inf; exp of it is 0 in fp32 like that of −Inf. Every row has an allowed key.
_FORBIDDEN = float(np.finfo(np.float32).min)
# The attributes a canonical Attention node may have, and the values under which they mean nothing.
_NEUTRAL = {"qk_matmul_output_mode": 0, "softcap": 0.0, "is_causal": 0}


class DecomposeAttention(ir.passes.InPlacePass):
    """Every Attention node is softmax(q·kᵀ / sqrt(D), where allowed)·v in standard nodes; scores and softmax are fp32.

    The last node keeps the Attention node's name and value name. q and k are cast to fp32 before they are multiplied:
    a score of half operands is a sum over D that may overflow fp16. The weights return to v's type for the product
    with v, which is an average of v.

    Requires: q, k, v ``[B, H, S|K, D]`` and a bool mask ``[B, 1, S, K]``, no scale of its own, D known from the past
    keys. Ensures: no Attention node. Raises: PassError. Source: https://onnx.ai/onnx/operators/onnx__Attention.html
    """

    def requires(self, model: ir.Model) -> None:
        problems = []
        for node in nodes_of(model, "Attention"):
            extra = {a.name: a.value for a in node.attributes.values() if _NEUTRAL.get(a.name) != a.value}
            if extra:
                problems.append(f"{node.name} has {extra}")
            if len(node.inputs) != 4 or len(node.outputs) != 1 or None in node.inputs:
                problems.append(
                    f"{node.name} has {len(node.inputs)} inputs and {len(node.outputs)} outputs, expected 4 and 1"
                )
        if problems:
            raise PassError(f"attention cannot be decomposed: {'; '.join(problems)}")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        nodes = nodes_of(model, "Attention")
        if nodes:
            scale = constant(model.graph, "attention.scale", np.array(1 / math.sqrt(_d_head(model.graph)), np.float32))
            forbidden = constant(model.graph, "attention.forbidden", np.array(_FORBIDDEN, np.float32))
            for node in nodes:
                _replace(model.graph, node, scale, forbidden)
        return ir.passes.PassResult(model, modified=bool(nodes))

    def ensures(self, model: ir.Model) -> None:
        check_none_left(model, "Attention")


def _d_head(graph: ir.Graph) -> int:
    key = graph_input(graph, "past_key_values.0.key")
    d_head = None if key.shape is None else key.shape[3]
    if not isinstance(d_head, int):
        raise PassError(f"the width of a head is not known: input {key.name} has D = {d_head}")
    return d_head


def _replace(graph: ir.Graph, node: ir.Node, scale: ir.Value, forbidden: ir.Value) -> None:
    q, k, v, allowed = node.inputs
    assert v is not None and v.dtype is not None
    name = str(node.name)
    new: list[ir.Node] = []

    def add(one: ir.Node) -> ir.Value:
        new.append(one)
        return one.outputs[0]

    def fp32(op_type: str, label: str, *inputs: ir.Value | None, **attributes: int | list[int]) -> ir.Value:
        return add(node_beside(node, op_type, inputs, f"{name}/{label}", attributes=attributes, dtype=_FP32))

    def cast(value: ir.Value | None, to: ir.DataType, label: str) -> ir.Value | None:
        needed = value is not None and value.dtype != to
        return add(cast_beside(node, value, to, f"{name}/{label}")) if needed else value

    # Labels carry the old node's name, so that a parser's message still names the layer.
    scaled_q = fp32("Mul", "q_scaled", cast(q, _FP32, "q_fp32"), scale)
    k_t = fp32("Transpose", "k_transposed", cast(k, _FP32, "k_fp32"), perm=[0, 1, 3, 2])
    scores = fp32("MatMul", "scores", scaled_q, k_t)
    masked = fp32("Where", "masked", allowed, scores, forbidden)
    weights = cast(fp32("Softmax", "weights", masked, axis=-1), v.dtype, "weights_stored")
    context = add(node_beside(node, "MatMul", [weights, v], name, dtype=v.dtype))
    ir.convenience.replace_nodes_and_values(graph, node, [node], new, [node.outputs[0]], [context])
