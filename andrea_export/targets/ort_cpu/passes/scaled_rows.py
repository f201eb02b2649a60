"""int8 layers whose rows are brought to one size before they are rounded together."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from andrea_export.core.errors import PassError
from andrea_export.graph.passes.graph_edits import constant, node_beside, replace_output


class ScaledRows(ir.passes.InPlacePass):
    """Each row of a layer's x is divided by its largest value before the product, and the product multiplied by it.

    In real numbers that changes nothing: y = m·((x / m)·W) + b. ``DynamicQuantizeMatMul`` rounds all rows of a run on
    one range, the largest row's; so divided, every row fills it, and a small one is not lost. The range is still
    shared. It costs six small operators a layer, and pays where rows differ much in size: on a trained model the
    largest row of an ``mlp.proj`` is three times as large as the median one, behind a norm less than twice.

    Requires: ``DynamicInt8`` before it, for these layers. Ensures: the layers' names stay. Raises: PassError.
    """

    def __init__(self, modules: tuple[str, ...]) -> None:
        super().__init__()
        self.modules = modules

    def requires(self, model: ir.Model) -> None:
        """Checks that every layer is DynamicQuantizeMatMul, and named once."""
        if len(set(self.modules)) != len(self.modules):
            raise PassError(f"a layer is named twice: {', '.join(self.modules)}")
        self._layers(model)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Puts the division before each product, and the multiplication and the bias after it."""
        graph = model.graph
        for name, product in zip(self.modules, self._layers(model), strict=True):
            floor = _shared(graph, "scaled_rows.floor", np.array([np.finfo(np.float32).tiny], np.float32))
            floor.shape = ir.Shape([])  # as the files say that are already sealed; runtimes read the tensor's own
            last = _shared(graph, "scaled_rows.axes", np.array([-1], np.int64))
            x, y, bias = product.inputs[0], product.outputs[0], product.inputs[4]
            sizes = _node("Abs", [x], f"{name}/abs", product)
            largest = _node("ReduceMax", [sizes.outputs[0], last], f"{name}/largest", product)
            divisor = _node("Max", [largest.outputs[0], floor], f"{name}/divisor", product)  # a row of zeros stays one
            unit = _node("Div", [x, divisor.outputs[0]], f"{name}/unit", product)
            graph.insert_before(product, [sizes, largest, divisor, unit])
            product.replace_input_with(0, unit.outputs[0])
            product.replace_input_with(4, None)
            product.name = f"{name}/DynamicQuantizeMatMul"
            scaled = _node("Mul", [None, divisor.outputs[0]], f"{name}/scaled", product)
            layer = _node("Add", [scaled.outputs[0], bias], name, product)
            graph.insert_after(product, [scaled, layer])
            replace_output(graph, y, layer.outputs[0])
            y.name = f"{name}/product"
            scaled.replace_input_with(0, y)
        return ir.passes.PassResult(model, modified=bool(self.modules))

    def ensures(self, model: ir.Model) -> None:
        """Checks the names of the layers' results."""
        names = {str(value.name) for node in model.graph for value in node.outputs}
        missing = [name for name in self.modules if name not in names]
        if missing:
            raise PassError(f"no value is called {', '.join(missing[:8])} any more")

    def _layers(self, model: ir.Model) -> list[ir.Node]:
        found = {str(node.name): node for node in model.graph if node.op_type == "DynamicQuantizeMatMul"}
        missing = [name for name in self.modules if name not in found]
        if missing:
            raise PassError(f"no DynamicQuantizeMatMul: {', '.join(missing[:8])}", hint="DynamicInt8 makes them")
        return [found[name] for name in self.modules]


def _shared(graph: ir.Graph, name: str, array: npt.NDArray[Any]) -> ir.Value:
    """The initializer of that name, made by the first layer that needs it."""
    return graph.initializers[name] if name in graph.initializers else constant(graph, name, array)


def _node(op_type: str, inputs: list[ir.Value | None], name: str, beside: ir.Node) -> ir.Node:
    return node_beside(beside, op_type, inputs, name, outputs=(f"{name}:scaled_rows",), dtype=ir.DataType.FLOAT)
