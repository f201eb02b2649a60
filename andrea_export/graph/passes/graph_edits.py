"""What passes share: finding nodes and values, adding constants and nodes, putting one node in another's place, and
being run in order with their contracts checked."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from andrea_export.core.errors import PassError
from andrea_export.core.names import MODULE_KEY

MS_DOMAIN = "com.microsoft"
HINT = "start from the model.onnx that andrea-export wrote"


def module_of(node: ir.Node) -> str:
    """The module path a node belongs to. Raises PassError if it carries none."""
    if MODULE_KEY not in node.metadata_props:
        raise PassError(f"node '{node.name}' ({node.op_type}) carries no module path", hint=HINT)
    return node.metadata_props[MODULE_KEY]


def nodes_of(model: ir.Model, op_type: str, domain: str = "") -> list[ir.Node]:
    """The nodes of one operator, in graph order."""
    return [node for node in model.graph if (node.domain, node.op_type) == (domain, op_type)]


def check_none_left(model: ir.Model, op_type: str) -> None:
    """Raises PassError naming the nodes of a standard operator that are still in the graph."""
    if left := nodes_of(model, op_type):
        raise PassError(f"{op_type} nodes are left: {', '.join(str(node.name) for node in left)}")


def graph_input(graph: ir.Graph, name: str) -> ir.Value:
    """The input of that name. Raises PassError if there is none."""
    return _named(graph.inputs, "input", name)


def graph_output(graph: ir.Graph, name: str) -> ir.Value:
    """The output of that name. Raises PassError if there is none."""
    return _named(graph.outputs, "output", name)


def _named(values: Sequence[ir.Value], kind: str, name: str) -> ir.Value:
    for value in values:
        if value.name == name:
            return value
    raise PassError(f"the graph has no {kind} '{name}'", hint=HINT)


def array_of(value: ir.Value) -> npt.NDArray[Any]:
    """The contents of an initializer. Raises PassError if the value is not one."""
    if value.const_value is None:
        raise PassError(f"value '{value.name}' is not a constant", hint=HINT)
    return value.const_value.numpy()


def producer_of(value: ir.Value | None, *op_types: str) -> ir.Node:
    """The node a value comes from. Raises PassError unless it is a standard operator of one of these types."""
    node = None if value is None else value.producer()
    if node is None or node.domain != "" or node.op_type not in op_types:
        found = "a graph input or constant" if node is None else f"{node.op_type} '{node.name}'"
        name = None if value is None else value.name
        raise PassError(f"value '{name}' comes from {found}, expected {' or '.join(op_types)}", hint=HINT)
    return node


def constant(graph: ir.Graph, name: str, array: npt.NDArray[Any]) -> ir.Value:
    """A new initializer. Raises PassError if the graph has one of that name."""
    if name in graph.initializers:
        raise PassError(f"the graph already has an initializer '{name}'", hint=HINT)
    tensor = ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


def node_beside(
    beside: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    name: str,
    *,
    domain: str = "",
    attributes: Mapping[str, float | str | Sequence[int]] | None = None,
    outputs: Sequence[str] | None = None,
    dtype: ir.DataType | None = None,
) -> ir.Node:
    """A node of the module that ``beside`` belongs to, not yet in the graph.

    Its one output is called as the node is, unless ``outputs`` names them; each is of type ``dtype``. Raises PassError
    if ``beside`` carries no module path.
    """
    element = None if dtype is None else ir.TensorType(dtype)
    return ir.node(
        op_type,
        inputs,
        attributes,
        domain=domain,
        outputs=[ir.Value(name=output, type=element) for output in outputs or (name,)],
        name=name,
        metadata_props={MODULE_KEY: module_of(beside)},
    )


def cast_beside(
    beside: ir.Node, value: ir.Value | None, to: ir.DataType, name: str, *, output: str | None = None
) -> ir.Node:
    """A Cast of the value, as ``node_beside`` makes it."""
    outputs = None if output is None else (output,)
    return node_beside(beside, "Cast", [value], name, attributes={"to": to.value}, outputs=outputs, dtype=to)


def replace_node(graph: ir.Graph, old: ir.Node, new: ir.Node) -> None:
    """The new node stands in the old one's place, under its value's name and type; what only the old one read goes.

    A domain other than ONNX's own is imported.
    """
    graph.insert_after(old, new)
    replace_output(graph, old.outputs[0], new.outputs[0])
    drop_dead_nodes(graph)
    if new.domain:
        graph.opset_imports[new.domain] = 1


def replace_output(graph: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """Every reader of the old value, the graph's outputs included, reads the new one, which takes over its name.

    The type it takes over too, where it has none of its own; the shape only at the graph's boundary.
    """
    name, old.name = old.name, f"{old.name}/replaced"
    new.name = name
    if new.type is None:
        new.type = old.type
    for use in list(old.uses()):
        use.node.replace_input_with(use.idx, new)
    for index, output in enumerate(list(graph.outputs)):
        if output is old:
            if new.shape is None:
                new.shape = old.shape
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


def run_passes(model: ir.Model, *passes: ir.passes.InPlacePass) -> None:
    """The model with every pass applied, in order, each one's ``requires`` and ``ensures`` checked.

    Raises: PassError for the first contract that does not hold, naming its pass and those that ran before it.
    """
    ran: list[str] = []
    for one in passes:
        name = type(one).__name__
        try:
            one(model)
        except (PassError, ir.passes.InvariantError) as error:
            # The base class wraps what requires and ensures raise; what is not a PassError in it is a bug.
            problem = error if isinstance(error, PassError) else error.__cause__
            if not isinstance(problem, PassError):
                raise
            after = f" (after {', '.join(ran)})" if ran else ""
            raise PassError(f"{name}{after}: {problem}", hint=problem.hint) from None
        ran.append(name)
