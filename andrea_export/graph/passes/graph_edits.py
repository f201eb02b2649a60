"""What the passes for onnxruntime's CPU provider share: finding values, adding constants, dropping dead nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from andrea_export.core.errors import PassError
from andrea_export.core.metadata import MODULE_KEY

MS_DOMAIN = "com.microsoft"
HINT = "start from the model.onnx that andrea-export wrote"


def module_of(node: ir.Node) -> str:
    """The module path a node belongs to. Raises PassError if it carries none."""
    if MODULE_KEY not in node.metadata_props:
        raise PassError(f"node '{node.name}' ({node.op_type}) carries no module path", hint=HINT)
    return node.metadata_props[MODULE_KEY]


def constant(graph: ir.Graph, name: str, array: npt.NDArray[Any]) -> ir.Value:
    """A new initializer. Raises PassError if the graph has one of that name."""
    if name in graph.initializers:
        raise PassError(f"the graph already has an initializer '{name}'", hint=HINT)
    tensor = ir.Tensor(np.ascontiguousarray(array), name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


def graph_input(graph: ir.Graph, name: str) -> ir.Value:
    """The input of that name. Raises PassError if there is none."""
    for value in graph.inputs:
        if value.name == name:
            return value
    raise PassError(f"the graph has no input '{name}'", hint=HINT)


def array_of(value: ir.Value) -> npt.NDArray[Any]:
    """The contents of an initializer. Raises PassError if the value is none."""
    if value.const_value is None:
        raise PassError(f"value '{value.name}' is no constant", hint=HINT)
    return value.const_value.numpy()


def producer_of(value: ir.Value | None, *op_types: str) -> ir.Node:
    """The node a value comes from. Raises PassError unless it is a standard operator of one of these types."""
    node = None if value is None else value.producer()
    if node is None or node.domain != "" or node.op_type not in op_types:
        found = "a graph input or constant" if node is None else f"{node.op_type} '{node.name}'"
        name = None if value is None else value.name
        raise PassError(f"value '{name}' comes from {found}, expected {' or '.join(op_types)}", hint=HINT)
    return node


def node_beside(
    beside: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    name: str,
    *,
    attributes: Sequence[ir.Attr] = (),
    value: str | None = None,
    dtype: ir.DataType | None = None,
) -> ir.Node:
    """A standard operator of the module that ``beside`` belongs to, not yet in the graph.

    Its one output is called ``value``, or as the node is. Raises PassError if ``beside`` carries no module path.
    """
    output = ir.Value(name=value or name, type=None if dtype is None else ir.TensorType(dtype))
    metadata = {MODULE_KEY: module_of(beside)}
    return ir.Node("", op_type, inputs, attributes, outputs=[output], name=name, metadata_props=metadata)


def replace_output(graph: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """Every reader of the old value, the graph's outputs included, reads the new one, which takes over its name."""
    name, old.name = old.name, f"{old.name}/replaced"
    new.name = name
    for use in list(old.uses()):
        use.node.replace_input_with(use.idx, new)
    for index, output in enumerate(list(graph.outputs)):
        if output is old:
            if new.shape is None:
                new.shape = old.shape
            if new.type is None:
                new.type = old.type
            graph.outputs[index] = new


def drop_dead_nodes(graph: ir.Graph) -> None:
    """Removes every node and initializer that no output depends on."""
    outputs = set(graph.outputs)
    for node in reversed(list(graph)):
        if not any(value in outputs or value.uses() for value in node.outputs):
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not value.uses() and value not in outputs:
            del graph.initializers[name]


def import_ms_domain(model: ir.Model) -> None:
    """States that the graph uses onnxruntime's own operators."""
    model.opset_imports[MS_DOMAIN] = 1
    model.graph.opset_imports[MS_DOMAIN] = 1
