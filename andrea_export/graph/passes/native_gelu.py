"""The runtime's own GELU: leaves a parser no plugin to take."""

from __future__ import annotations

import onnx_ir as ir

from andrea_export.core.errors import PassError
from andrea_export.graph.passes.gelu_nodes import GeluPass, gelu_nodes
from andrea_export.graph.passes.graph_edits import cast_beside, node_beside

_FP32 = ir.DataType.FLOAT


class NativeGelu(GeluPass):
    """Every GELU is the standard ``Gelu(approximate="tanh")``, computed in fp32, under the same node and value names.

    A half GELU is cast to fp32 and back: a runtime may compute Gelu in its storage type, where x³ overflows fp16 from
    41 on.

    Requires: GELU nodes with the attributes that name the plugin. Ensures: no node, function or import of the custom
    domain. Raises: PassError.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replaces each node, then drops the function and the domain."""
        for node in gelu_nodes(model, self.op):
            _replace(model.graph, node)
        self.remove_function(model)
        model.opset_imports.pop(self.op.domain, None)
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """Checks that the custom operator is gone."""
        left = [str(node.name) for node in model.graph if node.domain == self.op.domain]
        if left or model.functions or self.op.domain in model.opset_imports:
            raise PassError(f"the graph still uses {self.op.domain}: {', '.join(left) or 'functions or opset import'}")


def _replace(graph: ir.Graph, node: ir.Node) -> None:
    name, x, y = str(node.name), node.inputs[0], node.outputs[0]
    tanh = {"approximate": "tanh"}
    if y.dtype == _FP32:
        new = [node_beside(node, "Gelu", [x], name, attributes=tanh)]
    else:
        assert y.dtype is not None
        before = cast_beside(node, x, _FP32, f"{name}/Cast")
        gelu = node_beside(node, "Gelu", before.outputs, f"{name}/Gelu", attributes=tanh, dtype=_FP32)
        new = [before, gelu, cast_beside(node, gelu.outputs[0], y.dtype, name)]
    ir.convenience.replace_nodes_and_values(graph, node, [node], new, [y], [new[-1].outputs[0]])
