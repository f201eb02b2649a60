"""The linear layers of a canonical graph: y = x·W + b, found by module path."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from andrea_export.core.errors import PassError
from andrea_export.core.names import MODULE_KEY

BLOCK_LINEARS = ("attn.qkv", "attn.proj", "mlp.fc", "mlp.proj")
"""The linear layers of a block, by path inside the block, in model order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearLayer:
    """One linear layer: its module path, the node that adds its bias (or multiplies, without one), what it reads."""

    module: str
    last: ir.Node
    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None


def linear_layers(model: ir.Model, modules: tuple[str, ...]) -> list[LinearLayer]:
    """The layers of these module paths, in this order. Raises PassError naming those the graph does not have."""
    found = {}
    for node in model.graph:
        module = node.metadata_props.get(MODULE_KEY, "")
        if node.name != module or f"{module}.weight" not in model.graph.initializers:
            continue
        product, bias = (node.outputs[0], None) if node.op_type == "MatMul" else (*node.inputs, None, None)[:2]
        matmul = None if product is None else product.producer()
        if matmul is None or matmul.op_type != "MatMul":
            continue
        x, weight = matmul.inputs
        if x is not None and weight is not None and weight.const_value is not None:
            found[module] = LinearLayer(module=module, last=node, x=x, weight=weight, bias=bias)
    missing = [module for module in modules if module not in found]
    if missing:
        raise PassError(f"the graph has no linear layer {', '.join(missing[:8])}")
    return [found[module] for module in modules]
