"""The graph's names, which every target, session and report shares; and ``n_layer`` blocks from one: the traced block
is the template, each instance is fed by the block before it.

A value that a layer produces is named by the layer's module path (``blocks.3.mlp.gelu``), and so is the node that
produces it; a layer's inner nodes are ``<module path>/<op type>``.
"""

import json

import onnx_ir as ir

from andrea_export.core.errors import ExportError
from andrea_export.core.names import MODULE_KEY, graph_outputs
from andrea_model.config import AndreaConfig

_TEMPLATE = "blocks.0."


def instantiate_blocks(graph: ir.Graph, config: AndreaConfig) -> None:
    """Turns the traced block into ``n_layer`` of them, and states the outputs of all of them in order."""
    template = [node for node in graph if node.metadata_props[MODULE_KEY].startswith("blocks.0")]
    stream_in = next(node for node in graph if node.name == "embed_residual").outputs[0]
    stream_out = next(node for node in template if node.name == f"{_TEMPLATE}mlp_residual").outputs[0]
    after_blocks = [use for use in stream_out.uses() if use.node not in set(template)]
    stream, last = stream_out, template[-1]
    for index in range(1, config.n_layer):
        block = _Instance(graph, template, index)
        block.values[stream_in] = stream
        nodes = [block.node(node) for node in template]
        graph.insert_after(last, nodes)
        stream, last = block.values[stream_out], nodes[-1]
    for use in after_blocks:
        use.node.replace_input_with(use.idx, stream)
    by_name = {value.name: value for node in graph for value in node.outputs}
    graph.outputs[:] = [by_name[spec.name] for spec in graph_outputs(config)]


class _Instance:
    """Block ``index``, made node by node in the template's order."""

    def __init__(self, graph: ir.Graph, template: list[ir.Node], index: int) -> None:
        self._graph, self._index = graph, index
        self._inside = {value for node in template for value in node.outputs}
        self.values: dict[ir.Value, ir.Value] = {}
        """Value of the template → the instance's."""

    def node(self, node: ir.Node) -> ir.Node:
        """The instance's copy of a node."""
        return ir.Node(
            node.domain,
            node.op_type,
            inputs=[None if value is None else self._value(value) for value in node.inputs],
            attributes=list(node.attributes.values()),
            outputs=[self._value(value) for value in node.outputs],
            name=self._name(str(node.name)),
            metadata_props={MODULE_KEY: self._name(node.metadata_props[MODULE_KEY])},
        )

    def _value(self, value: ir.Value) -> ir.Value:
        """The instance's own parameter, cache or inner value; whatever else is shared by all blocks: the mask, axes."""
        if value in self.values:
            return self.values[value]
        name = str(value.name)
        is_parameter = value.is_initializer() and name.startswith(_TEMPLATE)
        is_cache = name.startswith("past_key_values.0.")
        if not (is_parameter or is_cache or value in self._inside):
            return value
        copy = self.values[value] = ir.Value(name=self._name(name), shape=value.shape, type=value.type)
        if is_parameter:
            copy.const_value = value.const_value
            self._graph.register_initializer(copy)
        if is_cache:
            self._graph.inputs.append(copy)
        return copy

    def _name(self, name: str) -> str:
        for prefix in ("blocks.", "past_key_values.", "present."):
            if name.startswith(f"{prefix}0"):
                return f"{prefix}{self._index}{name[len(prefix) + 1 :]}"
        raise ExportError(f"'{name}' is inside a block but not named by it")


def name_by_module(graph: ir.Graph) -> None:
    """Names every node, value and initializer by module path; strips the exporter's notes (they hold local paths)."""
    nodes = list(graph)
    module_of = _modules_of(nodes)
    modules = set(module_of.values())
    leaves = {module for module in modules if not any(other.startswith(f"{module}.") for other in modules)} - {""}
    last_of_module = {module_of[node]: node for node in nodes}
    boundary = set(graph.outputs)
    taken: set[str] = set()
    for node in nodes:
        module = module_of[node]
        is_result = module in leaves and last_of_module[module] is node
        label = module if is_result else _unused(f"{module or 'graph'}/{node.op_type}", taken)
        node.name = label
        node.doc_string = None
        node.metadata_props.clear()
        node.metadata_props[MODULE_KEY] = module
        for index, value in enumerate(node.outputs):
            value.metadata_props.clear()
            if value not in boundary:
                value.name = label if index == 0 else f"{label}:{index}"
    for index, value in enumerate(list(graph.initializers.values())):
        value.metadata_props.clear()
        name = str(value.name)
        value.name = name.removeprefix("model.") if name.startswith("model.") else f"constant.{index}"


def _modules_of(nodes: list[ir.Node]) -> dict[ir.Node, str]:
    """Node → the path of its module, ``""`` for the graph's own."""
    traced = {node: _traced_module(node) for node in nodes}
    for node in reversed(nodes):
        if traced[node] is None:  # an optimizer's replacement: it belongs where its result is used
            traced[node] = next((traced[use.node] for value in node.outputs for use in value.uses()), "")
    return {node: module or "" for node, module in traced.items()}


def _traced_module(node: ir.Node) -> str | None:
    """The innermost module a traced node belongs to, or None where the exporter lost it."""
    scopes = node.metadata_props.get("pkg.torch.onnx.name_scopes")
    if scopes is None:
        return None
    modules = [scope for scope in json.loads(scopes.replace("'", '"'))[:-1] if scope.startswith("model.")]
    return modules[-1].removeprefix("model.") if modules else ""


def _unused(label: str, taken: set[str]) -> str:
    name, count = label, 1
    while name in taken:
        count += 1
        name = f"{label}.{count}"
    taken.add(name)
    return name
