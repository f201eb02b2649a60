"""A graph that shows one block's attention weights, which no layer of the canonical file is."""

from __future__ import annotations

from pathlib import Path

from andrea_export.core.errors import RunError
from andrea_export.lesson.formulas import attention_weights_name


def model_with_attention_weights(model: Path, block: int, folder: Path) -> Path:
    """A copy of the model in which one block's attention weights are an output; everything else is as it was.

    Source: https://onnx.ai/onnx/operators/onnx__Attention.html: the fourth output, ``qk_matmul_output``, holds the
    values after softmax where ``qk_matmul_output_mode`` is 3. Raises: RunError for a graph that has no such node.
    """
    import onnx_ir as ir

    graph_model = ir.load(model)
    graph = graph_model.graph
    inside = f"blocks.{block}.attn"
    found = [node for node in graph if node.op_type == "Attention" and str(node.name).startswith(f"{inside}.")]
    if len(found) != 1:
        raise RunError(
            f"{model} has {len(found)} Attention nodes in {inside}, expected 1",
            hint="trace a model.onnx of andrea-export",
        )
    node = found[0]
    node.resize_outputs(4)
    node.attributes["qk_matmul_output_mode"] = ir.AttrInt64("qk_matmul_output_mode", 3)
    for unused in node.outputs[1:3]:
        unused.name = ""  # ONNX's spelling of an optional output that is left out
    weights = node.outputs[3]
    weights.name = attention_weights_name(block)
    weights.type = ir.TensorType(ir.DataType.FLOAT)
    graph.outputs.append(weights)
    path = folder / "model.onnx"
    ir.save(graph_model, path, external_data="model.onnx.data")
    return path
