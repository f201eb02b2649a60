"""The runtime's own GELU: leaves a parser no plugin to take."""

from __future__ import annotations

import onnx_ir as ir

from andrea_export.core.errors import PassError
from andrea_export.core.metadata import MODULE_KEY
from andrea_export.graph.passes.gelu_nodes import check_gelu_nodes, gelu_nodes, remove_function
from andrea_export.graph.passes.graph_edits import module_of
from andrea_export.operators.rows import CustomOp


class NativeGelu(ir.passes.InPlacePass):
    """Every GELU is the standard ``Gelu(approximate="tanh")``, computed in fp32, under the same node and value names.

    A half GELU is cast to fp32 and back: a runtime may compute Gelu in its storage type, where x³ overflows fp16 from
    41 on.

    Requires: GELU nodes with the attributes that name the plugin. Ensures: no node, function or import of the custom
    domain. Raises: PassError.
    """

    def __init__(self, op: CustomOp) -> None:
        super().__init__()
        self.op = op

    def requires(self, model: ir.Model) -> None:
        """Checks the nodes."""
        check_gelu_nodes(model, self.op)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replaces each node, then drops the function and the domain."""
        for node in gelu_nodes(model, self.op):
            self._replace(model.graph, node)
        remove_function(model, self.op)
        model.opset_imports.pop(self.op.domain, None)
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """Checks that the custom operator is gone."""
        left = [str(node.name) for node in model.graph if node.domain == self.op.domain]
        if left or model.functions or self.op.domain in model.opset_imports:
            raise PassError(f"the graph still uses {self.op.domain}: {', '.join(left) or 'functions or opset import'}")

    def _replace(self, graph: ir.Graph, node: ir.Node) -> None:
        source, result = node.inputs[0], node.outputs[0]
        assert source is not None
        name, module = str(node.name), module_of(node)

        def one(op_type: str, value: ir.Value, label: str, attributes: list[ir.Attr]) -> ir.Node:
            return ir.Node(
                "",
                op_type,
                [value],
                attributes,
                outputs=[ir.Value(name=label)],
                name=label,
                metadata_props={MODULE_KEY: module},
            )

        is_half = result.dtype != ir.DataType.FLOAT
        new = []
        if is_half:
            new.append(one("Cast", source, f"{name}/Cast", [ir.AttrInt64("to", ir.DataType.FLOAT)]))
            new[-1].outputs[0].dtype = ir.DataType.FLOAT
            source = new[-1].outputs[0]
        new.append(one("Gelu", source, f"{name}/Gelu" if is_half else name, [ir.AttrString("approximate", "tanh")]))
        if is_half:
            new[-1].outputs[0].dtype = ir.DataType.FLOAT
            assert result.dtype is not None
            new.append(one("Cast", new[-1].outputs[0], name, [ir.AttrInt64("to", result.dtype)]))
        ir.convenience.replace_nodes_and_values(graph, node, [node], new, [result], [new[-1].outputs[0]])
