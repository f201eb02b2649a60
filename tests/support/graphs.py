"""Graphs of a few nodes in ONNX's text format, named as the canonical file names its own."""

from __future__ import annotations

import onnx_ir as ir

from andrea_export.core.names import MODULE_KEY

GELU = 'com.andrea.AndreaGelu <plugin_namespace = "com.andrea", plugin_version = "1">'


def graph_of(text: str) -> ir.Model:
    """The model that a graph's text describes. A node's module path is its name up to a slash."""
    model = ir.from_onnx_text(f'<ir_version: 10, opset_import: ["": 23, "com.andrea": 1]>\n{text}')
    for node in model.graph:
        node.metadata_props[MODULE_KEY] = str(node.name).partition("/")[0]
    return model


def two_gelus(dtype: str = "float") -> ir.Model:
    """A GELU of a GELU, and the operator's body."""
    return graph_of(f"""
        gelus ({dtype}[N] x) => ({dtype}[N] "blocks.1.mlp.gelu") <{dtype}[N] "blocks.0.mlp.gelu"> {{
            ["blocks.0.mlp.gelu"] "blocks.0.mlp.gelu" = {GELU} (x)
            ["blocks.1.mlp.gelu"] "blocks.1.mlp.gelu" = {GELU} ("blocks.0.mlp.gelu")
        }}
        <domain: "com.andrea", opset_import: ["": 23]> AndreaGelu (x) => (y) {{ y = Gelu <approximate = "tanh"> (x) }}
    """)


def two_attentions(d_head: int | str = 8) -> ir.Model:
    """Two masked attentions on the same keys, whose width only the past states."""
    return graph_of(f"""
        attentions (float[B, 2, S, D] q, float[B, 2, K, D] k, float[B, 2, K, D] v, bool[B, 1, S, K] mask,
                    float[B, 2, P, {d_head}] "past_key_values.0.key") => (float[B, 2, S, D] y)
            <float[B, 2, S, D] "blocks.0.attn.context/Attention"> {{
            ["blocks.0.attn.context/Attention"] "blocks.0.attn.context/Attention" = Attention (q, k, v, mask)
            ["blocks.1.attn.context/Attention"] y = Attention ("blocks.0.attn.context/Attention", k, v, mask)
        }}
    """)


def half_between_norms() -> ir.Model:
    """A norm, a product of a half module, and what it is added to: a border on either side of the product."""
    return graph_of("""
        half (float[N, 2] x) => (float[N, 2] "blocks.0.mlp_residual")
            <float[2] "blocks.0.ln_2.weight" = {1, 1},
             float[2, 2] "blocks.0.mlp.proj.weight" = {1, 2, 3, 4}, float[2] "blocks.0.mlp.proj.bias" = {5, 6},
             float[N, 2] "blocks.0.ln_2", float[N, 2] "blocks.0.mlp.proj/MatMul", float[N, 2] "blocks.0.mlp.proj"> {
            ["blocks.0.ln_2"] "blocks.0.ln_2" = LayerNormalization (x, "blocks.0.ln_2.weight")
            ["blocks.0.mlp.proj/MatMul"] "blocks.0.mlp.proj/MatMul" =
                MatMul ("blocks.0.ln_2", "blocks.0.mlp.proj.weight")
            ["blocks.0.mlp.proj"] "blocks.0.mlp.proj" = Add ("blocks.0.mlp.proj/MatMul", "blocks.0.mlp.proj.bias")
            ["blocks.0.mlp_residual"] "blocks.0.mlp_residual" = Add (x, "blocks.0.mlp.proj")
        }
    """)
