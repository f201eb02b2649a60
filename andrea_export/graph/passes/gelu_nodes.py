"""The custom GELU's nodes in a graph: what the passes that rewrite them have in common."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from andrea_export.core.errors import PassError
from andrea_export.graph.passes.graph_edits import HINT, nodes_of
from andrea_export.operators.rows import CustomOp


class GeluPass(ir.passes.InPlacePass):
    """A pass over the nodes of one custom operator. Requires: nodes with the attributes that name the plugin."""

    def __init__(self, op: CustomOp) -> None:
        super().__init__()
        self.op = op

    def requires(self, model: ir.Model) -> None:
        """Checks the nodes."""
        check_gelu_nodes(model, self.op)

    def remove_function(self, model: ir.Model) -> bool:
        """Whether there was a local function of the operator; there is none afterwards."""
        removed = [key for key in model.functions if key[:2] == (self.op.domain, self.op.op_type)]
        for key in removed:
            del model.functions[key]
        return bool(removed)


def gelu_nodes(model: ir.Model, op: CustomOp) -> list[ir.Node]:
    """The nodes of the custom operator, in graph order."""
    return nodes_of(model, op.op_type, op.domain)


def check_gelu_nodes(model: ir.Model, op: CustomOp) -> None:
    """Holds if there are GELU nodes, each with one input, one output and exactly the attributes that name the plugin.

    Raises: PassError listing every node for which it does not.
    """
    nodes = gelu_nodes(model, op)
    if not nodes:
        raise PassError(f"the graph has no {op.qualified_name} node", hint=HINT)
    wanted = {"plugin_namespace": op.plugin_namespace, "plugin_version": op.plugin_version}
    problems = []
    for node in nodes:
        found = {attribute.name: attribute.value for attribute in node.attributes.values()}
        if found != wanted:
            problems.append(f"{node.name} has {_shown(found)}")
        if len(node.inputs) != 1 or len(node.outputs) != 1:
            problems.append(f"{node.name} has {len(node.inputs)} inputs and {len(node.outputs)} outputs")
    if problems:
        raise PassError(
            f"{op.qualified_name} nodes must have one input, one output and {_shown(wanted)}: {'; '.join(problems)}",
            hint=HINT,
        )


def _shown(attributes: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in sorted(attributes.items())) or "no attributes"
