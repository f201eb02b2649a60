"""The file given to TensorRT: derived from the canonical ONNX, so that its parser has one way to read it and no choice.

Owns which passes make an engine's graph, and how the derived file shares the weights that did not change.
"""

from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from andrea_export.core.precision import Precision
from andrea_export.graph.canonical import EXTERNAL_THRESHOLD_BYTES
from andrea_export.graph.passes.gelu_nodes import NativeGelu, PluginGelu, gelu_nodes
from andrea_export.graph.passes.graph_edits import run_passes
from andrea_export.operators.sources import andrea_gelu
from andrea_export.targets.tensorrt.passes.decompose_attention import DecomposeAttention
from andrea_export.targets.tensorrt.passes.mixed_precision import MixedPrecision


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """A derived file and the GELU layers in it, by module path."""

    path: Path
    gelu_layers: tuple[str, ...]


def derive_engine_model(
    model: Path,
    *,
    precision: Precision,
    plugin: bool,
    parser_knows_attention: bool,
    folder: Path,
    self_contained: bool = False,
) -> EngineModel:
    """Writes the engine's ``model.onnx`` into the folder, which must outlive its use and is not part of a bundle.

    ``plugin``: each GELU is the plugin and nothing else, or the standard Gelu. Attention stays one node where the
    precision allows it and the parser knows it. Weights that the precision leaves as they are stay in the canonical
    file, to which the folder holds a symbolic link; converted ones are written beside the graph. (A hard link would
    make onnxruntime and onnx refuse the canonical file as well, for having two names.) ``self_contained`` writes all
    weights into the folder instead: onnxruntime follows no link out of it.

    Raises: PassError if the file is not a canonical one.
    """
    graph_model = ir.load(model)
    op = andrea_gelu()
    gelu_layers = tuple(str(node.name) for node in gelu_nodes(graph_model, op))
    run_passes(graph_model, MixedPrecision(precision), PluginGelu(op) if plugin else NativeGelu(op))
    if not (parser_knows_attention and precision.attention_node):
        run_passes(graph_model, DecomposeAttention())
    path = folder / "model.onnx"
    weights = f"{precision.name}.data"
    if self_contained:
        ir.save(graph_model, path, external_data=weights, size_threshold_bytes=EXTERNAL_THRESHOLD_BYTES)
    else:
        _link_unchanged(graph_model.graph, folder)
        _write_converted(graph_model.graph, folder, weights)
        ir.save(graph_model, path)
    return EngineModel(path=path, gelu_layers=gelu_layers)


def _link_unchanged(graph: ir.Graph, folder: Path) -> None:
    for value in graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            link = folder / tensor.location
            if not link.is_symlink():
                link.symlink_to(Path(tensor.path).resolve())


def _write_converted(graph: ir.Graph, folder: Path, name: str) -> None:
    values = [
        value
        for value in graph.initializers.values()
        if isinstance(value.const_value, ir.Tensor) and value.const_value.nbytes >= EXTERNAL_THRESHOLD_BYTES
    ]
    if not values:
        return
    tensors = [value.const_value for value in values if value.const_value is not None]
    written = ir.external_data.convert_tensors_to_external(tensors, folder, name)
    for value, tensor in zip(values, written, strict=True):
        value.const_value = tensor
