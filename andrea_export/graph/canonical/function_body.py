"""The custom GELU as a local function: what a runtime without the plugin computes."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from andrea_export.graph.canonical import OPSET
from andrea_export.operators.rows import andrea_gelu


def add_function_body(model: ir.Model) -> None:
    """Adds ``com.andrea::AndreaGelu`` as a local function, its body as the operator's row writes it."""
    op = andrea_gelu()
    body = onnx.parser.parse_function(
        f'<opset_import: ["" : {OPSET}], domain: "{op.domain}">\n{op.op_type} (x) => (y) {{ {op.function_body} }}'
    )
    function = ir.from_proto(body)
    assert isinstance(function, ir.Function)
    model.functions[function.identifier()] = function
    model.opset_imports[op.domain] = op.opset_version
