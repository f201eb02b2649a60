"""Faults in what a block's nodes do: norms, GELU, attention, cache, residuals."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from support.planted.edit import (
    change_value,
    constant,
    insert_before,
    node_named,
    producer,
    replace_node,
    set_attribute,
)

# --- norms ------------------------------------------------------------------------------------------------------


def epsilon_changed(model: onnx.ModelProto, layer: str, size: float) -> None:
    """``size`` for 1e-5."""
    set_attribute(producer(model, layer), "epsilon", float(size))


def norm_without_mean(model: onnx.ModelProto, layer: str, size: float) -> None:
    """x / sqrt(mean(x²) + epsilon), as RMSNorm has it."""
    node = producer(model, layer)
    x, gain, *beta = node.input
    axes = constant(model, "axes", np.array([-1], np.int64))
    epsilon = constant(model, "epsilon", np.float32(1e-5))
    stem = f"planted/{layer}"
    replace_node(
        model,
        node,
        helper.make_node("Mul", [x, x], [f"{stem}/square"]),
        helper.make_node("ReduceMean", [f"{stem}/square", axes], [f"{stem}/mean"], keepdims=1),
        helper.make_node("Add", [f"{stem}/mean", epsilon], [f"{stem}/shifted"]),
        helper.make_node("Sqrt", [f"{stem}/shifted"], [f"{stem}/root"]),
        helper.make_node("Div", [x, f"{stem}/root"], [f"{stem}/normal"]),
        helper.make_node("Mul", [f"{stem}/normal", gain], [f"{stem}/scaled"]),
        helper.make_node("Sum", [f"{stem}/scaled", *beta], [layer], name=layer),
    )


def norm_skipped(model: onnx.ModelProto, layer: str, size: float) -> None:
    """The residual stream goes on as it is."""
    node = producer(model, layer)
    replace_node(model, node, helper.make_node("Identity", [node.input[0]], [layer], name=layer))


# --- GELU -------------------------------------------------------------------------------------------------------


def erf_for_tanh(model: onnx.ModelProto, layer: str, size: float) -> None:
    """The exact GELU, which is another function."""
    node = producer(model, layer)
    replace_node(model, node, helper.make_node("Gelu", [node.input[0]], [layer], name=layer, approximate="none"))


def sigmoid_gelu(model: onnx.ModelProto, layer: str, size: float) -> None:
    """x · sigmoid(1.702 x)."""
    node = producer(model, layer)
    x, rate, stem = node.input[0], constant(model, "rate", np.float32(1.702)), f"planted/{layer}"
    replace_node(
        model,
        node,
        helper.make_node("Mul", [x, rate], [f"{stem}/rated"]),
        helper.make_node("Sigmoid", [f"{stem}/rated"], [f"{stem}/gate"]),
        helper.make_node("Mul", [x, f"{stem}/gate"], [layer], name=layer),
    )


def relu_for_gelu(model: onnx.ModelProto, layer: str, size: float) -> None:
    """max(x, 0)."""
    node = producer(model, layer)
    replace_node(model, node, helper.make_node("Relu", [node.input[0]], [layer], name=layer))


# --- attention --------------------------------------------------------------------------------------------------


def attention_scaled(model: onnx.ModelProto, layer: str, size: float) -> None:
    """``size`` / sqrt(d_head)."""
    set_attribute(_attention(model, layer), "scale", float(size / np.sqrt(_head_width(model, layer))))


def attention_softcapped(model: onnx.ModelProto, layer: str, size: float) -> None:
    """Scores bent towards ± ``size``."""
    set_attribute(_attention(model, layer), "softcap", float(size))


def mask_dropped(model: onnx.ModelProto, layer: str, size: float) -> None:
    """Every query sees every key."""
    del _attention(model, layer).input[3]


def mask_transposed(model: onnx.ModelProto, layer: str, size: float) -> None:
    """Queries see their future and not their past, in a square of the newest tokens."""
    node = _attention(model, layer)
    stem = f"planted/{layer}"
    names = {
        key: constant(model, key, np.array(value, np.int64))
        for key, value in {"axis": [3], "one": [1], "minus": [-1], "end": [2**62]}.items()
    }
    insert_before(
        model,
        node,
        helper.make_node("Shape", ["mask"], [f"{stem}/length"], start=2, end=3),
        helper.make_node("Shape", ["mask"], [f"{stem}/total"], start=3, end=4),
        helper.make_node("Sub", [f"{stem}/total", f"{stem}/length"], [f"{stem}/past"]),
        helper.make_node("Slice", ["mask", f"{stem}/past", names["end"], names["axis"]], [f"{stem}/new"]),
        helper.make_node("Transpose", [f"{stem}/new"], [f"{stem}/turned"], perm=[0, 1, 3, 2]),
        helper.make_node("Slice", ["mask", _zero(model), f"{stem}/past", names["axis"]], [f"{stem}/old"]),
        helper.make_node("Concat", [f"{stem}/old", f"{stem}/turned"], [f"{stem}/mask"], axis=3),
    )
    node.input[3] = f"{stem}/mask"


def query_heads_permuted(model: onnx.ModelProto, layer: str, size: float) -> None:
    """The heads of the query in reverse, those of key and value as they were."""
    node = _attention(model, layer)
    _permute_heads(model, node, node.input[0], layer)


def output_heads_permuted(model: onnx.ModelProto, layer: str, size: float) -> None:
    """The heads merged in reverse."""
    node = _attention(model, layer)
    order = constant(model, "order", np.arange(_num_heads(model, layer))[::-1].astype(np.int64).copy())
    change_value(model, node.output[0], ("Gather", (order,), {"axis": 1}))


def key_and_value_exchanged(model: onnx.ModelProto, layer: str, size: float) -> None:
    """softmax(q·vᵀ)·k."""
    node = _attention(model, layer)
    node.input[1], node.input[2] = node.input[2], node.input[1]


def stale_cache(model: onnx.ModelProto, layer: str, size: float) -> None:
    """Each new token stores the entry of the one before it: the newest is never written."""
    concat = producer(model, layer)
    axis, stem = constant(model, "axis", np.array([2], np.int64)), f"planted/{layer}"
    first, last = constant(model, "one", np.array([1], np.int64)), constant(model, "minus", np.array([-1], np.int64))
    insert_before(
        model,
        concat,
        helper.make_node("Slice", [concat.input[1], _zero(model), first, axis], [f"{stem}/first"]),
        helper.make_node("Slice", [concat.input[1], _zero(model), last, axis], [f"{stem}/before"]),
        helper.make_node("Concat", [f"{stem}/first", f"{stem}/before"], [f"{stem}/stale"], axis=2),
    )
    concat.input[1] = f"{stem}/stale"


def past_forgotten(model: onnx.ModelProto, layer: str, size: float) -> None:
    """What was cached comes back as zeros."""
    concat = producer(model, layer)
    nothing = constant(model, "nothing", np.float32(0))
    forgotten = helper.make_node("Mul", [concat.input[0], nothing], [f"planted/{layer}/past"])
    insert_before(model, concat, forgotten)
    concat.input[0] = forgotten.output[0]


# --- residual stream --------------------------------------------------------------------------------------------


def residual_skipped(model: onnx.ModelProto, layer: str, size: float) -> None:
    """The delta alone."""
    node = producer(model, layer)
    replace_node(model, node, helper.make_node("Identity", [node.input[1]], [layer], name=layer))


def delta_added_twice(model: onnx.ModelProto, layer: str, size: float) -> None:
    """The node duplicated."""
    change_value(model, layer, ("Add", (producer(model, layer).input[1],), {}))


def residual_of_embedding(model: onnx.ModelProto, layer: str, size: float) -> None:
    """The delta added to what the first block was given."""
    producer(model, layer).input[0] = "embed_residual"


def position_added_twice(model: onnx.ModelProto, layer: str, size: float) -> None:
    """The position embedding counts double."""
    change_value(model, layer, ("Add", ("position_embed",), {}))


# --- shared -----------------------------------------------------------------------------------------------------


def _attention(model: onnx.ModelProto, layer: str) -> onnx.NodeProto:
    return node_named(model, f"{layer}/Attention")


def _num_heads(model: onnx.ModelProto, layer: str) -> int:
    """From the cache's static dimension."""
    block = layer.split(".")[1]
    cache = next(value for value in model.graph.input if value.name == f"past_key_values.{block}.key")
    return int(cache.type.tensor_type.shape.dim[1].dim_value)


def _head_width(model: onnx.ModelProto, layer: str) -> int:
    block = layer.split(".")[1]
    cache = next(value for value in model.graph.input if value.name == f"past_key_values.{block}.key")
    return int(cache.type.tensor_type.shape.dim[3].dim_value)


def _permute_heads(model: onnx.ModelProto, node: onnx.NodeProto, value: str, layer: str) -> None:
    order = constant(model, "order", np.arange(_num_heads(model, layer))[::-1].astype(np.int64).copy())
    permuted = helper.make_node("Gather", [value, order], [f"planted/{layer}/heads"], axis=1)
    insert_before(model, node, permuted)
    node.input[list(node.input).index(value)] = permuted.output[0]


def _zero(model: onnx.ModelProto) -> str:
    return constant(model, "zero", np.array([0], np.int64))
