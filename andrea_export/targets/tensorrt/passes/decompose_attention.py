"""Attention spelled out with fp32 scores: for fp16, and for parsers without Attention (TensorRT before 10.14)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from andrea_export.core.errors import PassError
from andrea_export.core.metadata import MODULE_KEY
from andrea_export.graph.passes.graph_edits import module_of

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
        """Checks that each node is the plain masked attention."""
        problems = []
        for node in _attention_nodes(model):
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
        """Replaces each node."""
        nodes = _attention_nodes(model)
        if nodes:
            scale = _constant(model.graph, "attention.scale", np.array(1 / math.sqrt(_d_head(model.graph)), np.float32))
            forbidden = _constant(model.graph, "attention.forbidden", np.array(_FORBIDDEN, np.float32))
            for node in nodes:
                _replace(model.graph, node, scale, forbidden)
        return ir.passes.PassResult(model, modified=bool(nodes))

    def ensures(self, model: ir.Model) -> None:
        """Checks that none is left."""
        if left := _attention_nodes(model):
            raise PassError(f"Attention nodes are left: {', '.join(str(node.name) for node in left)}")


def _attention_nodes(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type == "Attention" and node.domain == ""]


def _d_head(graph: ir.Graph) -> int:
    key = next((value for value in graph.inputs if value.name == "past_key_values.0.key"), None)
    d_head = None if key is None or key.shape is None else key.shape[3]
    if not isinstance(d_head, int):
        raise PassError(f"the width of a head is not known: input past_key_values.0.key has D = {d_head}")
    return d_head


def _constant(graph: ir.Graph, name: str, array: npt.NDArray[np.float32]) -> ir.Value:
    value = ir.Value(
        name=name, shape=ir.Shape(array.shape), type=ir.TensorType(_FP32), const_value=ir.Tensor(array, name=name)
    )
    graph.register_initializer(value)
    return value


def _replace(graph: ir.Graph, node: ir.Node, scale: ir.Value, forbidden: ir.Value) -> None:
    q, k, v, allowed = node.inputs
    assert q is not None and k is not None and v is not None and allowed is not None
    assert v.dtype is not None
    module, name = module_of(node), str(node.name)
    new: list[ir.Node] = []

    def add(op: str, label: str, inputs: list[ir.Value], dtype: ir.DataType, attributes: list[ir.Attr]) -> ir.Value:
        result = ir.Value(name=label, type=ir.TensorType(dtype))
        new.append(
            ir.Node("", op, inputs, attributes, outputs=[result], name=label, metadata_props={MODULE_KEY: module})
        )
        return result

    def fp32(value: ir.Value, label: str) -> ir.Value:
        if value.dtype == _FP32:
            return value
        return add("Cast", label, [value], _FP32, [ir.AttrInt64("to", _FP32)])

    # Labels carry the old node's name, so that a parser's message still names the layer.
    scaled_q = add("Mul", f"{name}/q_scaled", [fp32(q, f"{name}/q_fp32"), scale], _FP32, [])
    k_t = add(
        "Transpose", f"{name}/k_transposed", [fp32(k, f"{name}/k_fp32")], _FP32, [ir.AttrInt64s("perm", [0, 1, 3, 2])]
    )
    scores = add("MatMul", f"{name}/scores", [scaled_q, k_t], _FP32, [])
    masked = add("Where", f"{name}/masked", [allowed, scores, forbidden], _FP32, [])
    weights = add("Softmax", f"{name}/weights", [masked], _FP32, [ir.AttrInt64("axis", -1)])
    if v.dtype != _FP32:
        weights = add("Cast", f"{name}/weights_stored", [weights], v.dtype, [ir.AttrInt64("to", v.dtype)])
    context = add("MatMul", name, [weights, v], v.dtype, [])
    ir.convenience.replace_nodes_and_values(graph, node, [node], new, [node.outputs[0]], [context])
