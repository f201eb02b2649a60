"""The graph's names, which every target, session and report shares.

A value that a layer produces is named by the layer's module path (``blocks.3.mlp.gelu``), and so is the node that
produces it; a layer's inner nodes are ``<module path>/<op type>``.
"""

from __future__ import annotations

import json

import onnx_ir as ir

from andrea_export.core.metadata import MODULE_KEY


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
