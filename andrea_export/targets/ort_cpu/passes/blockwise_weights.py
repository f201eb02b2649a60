"""Block-wise weights: 4 or 8 bits each, a scale for every block, activations rounded to int8 block by block."""

from __future__ import annotations

import onnx_ir as ir

from andrea_export.core.errors import PassError
from andrea_export.graph.passes.graph_edits import array_of, constant
from andrea_export.targets.ort_cpu.passes.linear_layers import linear_layers, replace_linear
from andrea_export.targets.ort_cpu.quantization import block_codes, widest_block

ACCURACY_LEVEL = 4
"""MatMulNBits' int8 arithmetic. Level 1 (fp32) decodes ANDREA-120M five times slower at 4 bits:
docs/measurements/cpu-runtime.md."""


class BlockwiseWeights(ir.passes.InPlacePass):
    """The named layers are ``MatMulNBits``. Each row of x is rounded on its own, so rows do not depend on each other.

    A block is the widest of 128, 64 and 32 that divides the layer's K, and at most ``widest``.

    Requires: the layers, canonical, K a multiple of 32. Ensures: their names stay. Raises: PassError.
    Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits
    """

    def __init__(self, modules: tuple[str, ...], *, bits: int, widest: int = 128) -> None:
        super().__init__()
        self.modules, self.bits, self.widest = modules, bits, widest

    def requires(self, model: ir.Model) -> None:
        """Checks every layer's K."""
        problems = []
        for layer in linear_layers(model, self.modules):
            k = len(array_of(layer.weight))
            if k % 32:
                problems.append(f"{layer.module} (K = {k})")
        if problems:
            raise PassError(f"K is not a multiple of 32, the narrowest block: {', '.join(problems[:8])}")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replaces each layer and its weight."""
        graph = model.graph
        for layer in linear_layers(model, self.modules):
            weight = array_of(layer.weight)
            block_size = min(self.widest, widest_block(len(weight)))
            quantized = block_codes(weight, bits=self.bits, block_size=block_size)
            codes = constant(graph, f"{layer.module}.weight_block_int{self.bits}", quantized.codes)
            scales = constant(graph, f"{layer.module}.weight_block_scale", quantized.scales)
            replace_linear(
                graph,
                layer,
                "MatMulNBits",
                [layer.x, codes, scales, None, None, layer.bias],
                nbits_attributes(*weight.shape, bits=self.bits, block_size=block_size),
            )
        return ir.passes.PassResult(model, modified=bool(self.modules))


def nbits_attributes(k: int, n: int, *, bits: int, block_size: int) -> dict[str, int]:
    """The attributes of a MatMulNBits node."""
    return {"K": k, "N": n, "bits": bits, "block_size": block_size, "accuracy_level": ACCURACY_LEVEL}
