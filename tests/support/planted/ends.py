"""Faults at the two ends of the graph: tokens, positions, mask, head."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from support.planted.edit import (
    constant,
    insert_before,
    node_named,
    producer,
    replace_node,
    set_weight,
    weight,
)

# --- tokens and positions ---------------------------------------------------------------------------------------


def tokens_clipped(model: onnx.ModelProto, layer: str, size: float) -> None:
    """Ids above ``size`` become it."""
    _change_input(model, layer, "Min", np.array(int(size), np.int64))


def tokens_off_by_one(model: onnx.ModelProto, layer: str, size: float) -> None:
    """Each id's neighbour below."""
    zero = constant(model, "zero", np.array(0, np.int64))
    _change_input(model, layer, "Sub", np.array(1, np.int64))
    node = producer(model, layer)
    floor = helper.make_node("Max", [node.input[1], zero], [f"planted/{layer}/floor"])
    insert_before(model, node, floor)
    node.input[1] = floor.output[0]


def embedding_rows_swapped(model: onnx.ModelProto, layer: str, size: float) -> None:
    """Two rows exchanged; the tied head, if it is the token embedding, reads another copy."""
    table = weight(model, f"{layer}.weight")
    head = node_named(model, "head/Transpose")
    if head.input[0] == f"{layer}.weight":
        head.input[0] = constant(model, "head", table)
    set_weight(model, f"{layer}.weight", table[_two_swapped(len(table))])


def positions_off_by_one(model: onnx.ModelProto, layer: str, size: float) -> None:
    """Each token at the position after its own."""
    _change_input(model, layer, "Add", np.array(1, np.int64))


def positions_clipped(model: onnx.ModelProto, layer: str, size: float) -> None:
    """Positions above ``size`` become it."""
    _change_input(model, layer, "Min", np.array(int(size), np.int64))


def positions_count_padding(model: onnx.ModelProto, layer: str, size: float) -> None:
    """0, 1, 2, … from the left end of the row, padding included."""
    node = producer(model, layer)
    stem = f"planted/{layer}"
    one, zero = constant(model, "one", np.array(1, np.int64)), constant(model, "zero", np.array(0, np.int64))
    first = constant(model, "first", np.array([0], np.int64))
    insert_before(
        model,
        node,
        helper.make_node("Shape", ["attention_mask"], [f"{stem}/total.1"], start=1, end=2),
        helper.make_node("Squeeze", [f"{stem}/total.1", first], [f"{stem}/total"]),
        helper.make_node("Shape", ["input_ids"], [f"{stem}/length.1"], start=1, end=2),
        helper.make_node("Squeeze", [f"{stem}/length.1", first], [f"{stem}/length"]),
        helper.make_node("Sub", [f"{stem}/total", f"{stem}/length"], [f"{stem}/past"]),
        helper.make_node("Range", [f"{stem}/past", f"{stem}/total", one], [f"{stem}/row"]),
        helper.make_node("Mul", ["position_ids", zero], [f"{stem}/shape"]),
        helper.make_node("Add", [f"{stem}/shape", f"{stem}/row"], [f"{stem}/positions"]),
    )
    node.input[1] = f"{stem}/positions"


# --- mask and head ----------------------------------------------------------------------------------------------


def mask_off_by_one(model: onnx.ModelProto, layer: str, size: float) -> None:
    """A query does not see the token before it: key < query - 1, and itself."""
    node = node_named(model, "mask/LessOrEqual")
    one = constant(model, "one", np.array(1, np.int64))
    shifted = helper.make_node("Sub", [node.input[1], one], ["planted/mask/query"])
    insert_before(model, node, shifted)
    replace_node(
        model, node, helper.make_node("Less", [node.input[0], "planted/mask/query"], list(node.output), name=node.name)
    )


def mask_forgets_padding(model: onnx.ModelProto, layer: str, size: float) -> None:
    """Padding can be seen."""
    node = node_named(model, "mask/Or")
    node.input[0] = "mask/LessOrEqual"


def mask_sees_future(model: onnx.ModelProto, layer: str, size: float) -> None:
    """A query sees the token after it."""
    node = node_named(model, "mask/LessOrEqual")
    one = constant(model, "one", np.array(1, np.int64))
    shifted = helper.make_node("Add", [node.input[1], one], ["planted/mask/query"])
    insert_before(model, node, shifted)
    node.input[1] = "planted/mask/query"


def head_not_tied(model: onnx.ModelProto, layer: str, size: float) -> None:
    """A copy of the token embedding, rounded to bf16, as the head."""
    import ml_dtypes

    table = weight(model, "token_embed.weight")
    rounded = table.astype(ml_dtypes.bfloat16).astype(table.dtype)
    node_named(model, "head/Transpose").input[0] = constant(model, "head", rounded)


def head_tied(model: onnx.ModelProto, layer: str, size: float) -> None:
    """The token embedding in the place of the head's own matrix."""
    node_named(model, "head/Transpose").input[0] = "token_embed.weight"


def head_rows_swapped(model: onnx.ModelProto, layer: str, size: float) -> None:
    """Two tokens' rows of the head's own matrix exchanged."""
    table = weight(model, "head.weight")
    set_weight(model, "head.weight", table[_two_swapped(len(table))])


def _two_swapped(length: int) -> np.ndarray:
    order = np.arange(length)
    order[[5, 7]] = order[[7, 5]]
    return order


def _change_input(model: onnx.ModelProto, layer: str, op_type: str, operand: np.ndarray) -> None:
    """Puts one operator before the ids or positions that an embedding reads."""
    node = producer(model, layer)
    changed = helper.make_node(op_type, [node.input[1], constant(model, "operand", operand)], [f"planted/{layer}/ids"])
    insert_before(model, node, changed)
    node.input[1] = changed.output[0]
