"""The changes that faults are made of: a weight's array, a node's input, a value between its producer and its users."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

Array = npt.NDArray[Any]


def weight(model: onnx.ModelProto, name: str) -> Array:
    """A copy of an initializer."""
    return np.array(numpy_helper.to_array(_initializer(model, name)))


def set_weight(model: onnx.ModelProto, name: str, array: Array) -> None:
    """Replaces an initializer by an array of the same type; raises ValueError where nothing would change."""
    before = weight(model, name)
    after = array.astype(before.dtype)
    if after.shape == before.shape and np.array_equal(after, before):
        raise ValueError(f"the fault changes nothing in {name}")
    _initializer(model, name).CopyFrom(numpy_helper.from_array(after, name))


def constant(model: onnx.ModelProto, name: str, array: Array) -> str:
    """Adds an initializer under a name of its own and returns the name."""
    name = f"planted/{name}.{len(model.graph.initializer)}"
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return name


def node_named(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    """The node of this name."""
    found: onnx.NodeProto = next(node for node in model.graph.node if node.name == name)
    return found


def producer(model: onnx.ModelProto, value: str) -> onnx.NodeProto:
    """The node that computes a value."""
    found: onnx.NodeProto = next(node for node in model.graph.node if value in node.output)
    return found


def replace_node(model: onnx.ModelProto, node: onnx.NodeProto, *others: onnx.NodeProto) -> None:
    """Puts nodes in the place of one."""
    index = list(model.graph.node).index(node)
    model.graph.node.remove(node)
    for offset, other in enumerate(others):
        model.graph.node.insert(index + offset, other)


def insert_before(model: onnx.ModelProto, node: onnx.NodeProto, *others: onnx.NodeProto) -> None:
    """Puts nodes before one."""
    index = list(model.graph.node).index(node)
    for offset, other in enumerate(others):
        model.graph.node.insert(index + offset, other)


def change_value(model: onnx.ModelProto, value: str, *steps: tuple[str, tuple[str, ...], dict[str, Any]]) -> None:
    """Puts a chain of operators between a value's producer and everything that reads it.

    A step is (op type, further inputs, attributes); its first input is the step before.
    """
    node = producer(model, value)
    raw = f"{value}/planted.0"
    node.output[list(node.output).index(value)] = raw
    made = []
    for number, (op_type, inputs, attributes) in enumerate(steps, start=1):
        out = value if number == len(steps) else f"{value}/planted.{number}"
        made.append(helper.make_node(op_type, [raw, *inputs], [out], name=f"planted/{out}", **attributes))
        raw = out
    index = list(model.graph.node).index(node)
    for offset, other in enumerate(made, start=1):
        model.graph.node.insert(index + offset, other)


def set_attribute(node: onnx.NodeProto, name: str, value: Any) -> None:
    """Sets an attribute, whether the node has it or not."""
    for attribute in list(node.attribute):
        if attribute.name == name:
            node.attribute.remove(attribute)
    node.attribute.append(helper.make_attribute(name, value))


def _initializer(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    found: onnx.TensorProto = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    return found
