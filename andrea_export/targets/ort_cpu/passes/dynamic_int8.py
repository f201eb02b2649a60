"""int8 linear layers: weights in int8 with a scale an output, activations in uint8 with one scale a call."""

from __future__ import annotations

import onnx_ir as ir

from andrea_export.graph.passes.graph_edits import array_of, constant
from andrea_export.targets.ort_cpu.passes.linear_layers import linear_layers, replace_linear
from andrea_export.targets.ort_cpu.quantization import channel_codes


class DynamicInt8(ir.passes.InPlacePass):
    """The named layers are ``DynamicQuantizeMatMul``: x is rounded to uint8 on its own range each time it is called.

    That range is the whole tensor's: the rows of a batch and the tokens of a chunk share it, so a row's result depends
    a little on the rows beside it. The integer kernel is the fastest there is for many tokens at once.

    Requires: the layers, canonical. Ensures: their names stay. Raises: PassError. Source:
    https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.DynamicQuantizeMatMul
    """

    def __init__(self, modules: tuple[str, ...]) -> None:
        super().__init__()
        self.modules = modules

    def requires(self, model: ir.Model) -> None:
        """Checks that every layer is there."""
        linear_layers(model, self.modules)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replaces each layer and its weight."""
        graph = model.graph
        for layer in linear_layers(model, self.modules):
            quantized = channel_codes(array_of(layer.weight))
            codes = constant(graph, f"{layer.module}.weight_channel_int8", quantized.codes)
            scales = constant(graph, f"{layer.module}.weight_channel_scale", quantized.scales)
            replace_linear(graph, layer, "DynamicQuantizeMatMul", [layer.x, codes, scales, None, layer.bias])
        return ir.passes.PassResult(model, modified=bool(self.modules))
