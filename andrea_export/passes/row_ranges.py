"""int8 layers whose activations keep a range for each token, though their kernel knows one for all of them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from andrea_export.canonical import MODULE_KEY
from andrea_export.errors import PassError
from andrea_export.passes.contract import module_of
from andrea_export.passes.graph_edits import constant, replace_output

_FLOOR = "row_range_floor"


class RowRanges(ir.passes.InPlacePass):
    """Each row of a layer's x is divided by its largest value before the product, and the product multiplied by it.

    In real numbers that changes nothing: y = m·((x / m)·W) + b. ``DynamicQuantizeMatMul`` alone gives every row the
    largest row's range; so divided, all rows fill that range. It pays where rows differ much in size, as attention's do
    (a first token sees itself alone, later ones a mean of many), for six small operators a layer.

    Requires: ``DynamicInt8`` before it, for these layers. Ensures: the layers' names stay. Raises: PassError.
    """

    def __init__(self, modules: tuple[str, ...]) -> None:
        super().__init__()
        self.modules = modules

    def requires(self, model: ir.Model) -> None:
        """Checks that every layer is DynamicQuantizeMatMul."""
        self._layers(model)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Puts the division before each product, and the multiplication and the bias after it."""
        graph = model.graph
        if not self.modules:
            return ir.passes.PassResult(model, modified=False)
        floor = constant(graph, _FLOOR, np.array(np.finfo(np.float32).tiny, np.float32))  # a row of zeros stays one
        last = constant(graph, "row_range_axes", np.array([-1], np.int64))
        for name, product in zip(self.modules, self._layers(model), strict=True):
            x, y, bias = product.inputs[0], product.outputs[0], product.inputs[4]
            sizes = _node("Abs", [x], f"{name}/abs", product)
            largest = _node("ReduceMax", [sizes.outputs[0], last], f"{name}/largest", product)
            divisor = _node("Max", [largest.outputs[0], floor], f"{name}/divisor", product)
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
        return ir.passes.PassResult(model, modified=True)

    def _layers(self, model: ir.Model) -> list[ir.Node]:
        found = {str(node.name): node for node in model.graph if node.op_type == "DynamicQuantizeMatMul"}
        missing = [name for name in self.modules if name not in found]
        if missing:
            raise PassError(f"no DynamicQuantizeMatMul: {', '.join(missing[:8])}", hint="DynamicInt8 makes them")
        return [found[name] for name in self.modules]


def _node(op_type: str, inputs: list[ir.Value | None], name: str, beside: ir.Node) -> ir.Node:
    output = ir.Value(name=f"{name}:row_ranges", type=ir.TensorType(ir.DataType.FLOAT))
    metadata = {MODULE_KEY: module_of(beside)}
    return ir.Node("", op_type, inputs, outputs=[output], name=name, metadata_props=metadata)
