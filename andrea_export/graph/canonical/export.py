"""The canonical graph from a model: runs the stages, gives the graph its weights, its boundary and the GELU's body,
writes the file."""

from collections.abc import Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from andrea_export import __version__
from andrea_export.core.errors import ExportError
from andrea_export.core.names import TensorSpec, graph_inputs, graph_outputs
from andrea_export.graph.canonical import EXTERNAL_THRESHOLD_BYTES, OPSET, WEIGHTS_FILE
from andrea_export.graph.canonical.instantiate import instantiate_blocks, name_by_module
from andrea_export.graph.canonical.metadata import metadata_of
from andrea_export.graph.canonical.trace import trace_one_block
from andrea_export.operators.sources import andrea_gelu
from andrea_export.weights.load import LoadedModel
from andrea_model.config import AndreaConfig


def export_canonical(loaded: LoadedModel, folder: Path) -> Path:
    """Writes ``model.onnx`` and ``model.onnx.data`` into the folder; returns the first. Same model, same bytes.

    Raises: ExportError if tracing fails, or gives a graph without one GELU node a block.
    """
    model = canonical_graph(loaded)
    path = folder / "model.onnx"
    ir.save(model, path, external_data=WEIGHTS_FILE, size_threshold_bytes=EXTERNAL_THRESHOLD_BYTES)
    return path


def canonical_graph(loaded: LoadedModel) -> ir.Model:
    """The canonical graph in memory; its initializers share the torch model's memory."""
    model = trace_one_block(loaded.config)
    graph = model.graph
    name_by_module(graph)
    instantiate_blocks(graph, loaded.config)
    _set_weights(graph, loaded)
    set_interface(graph, loaded.config)
    add_function_body(model)
    model.producer_name = "andrea-export"
    model.producer_version = __version__
    model.metadata_props.clear()
    model.metadata_props.update(metadata_of(loaded.config, loaded.origin))
    op = andrea_gelu()
    num_gelus = sum(node.op_type == op.op_type and node.domain == op.domain for node in graph)
    if num_gelus != loaded.config.n_layer:
        raise ExportError(f"the graph has {num_gelus} {op.qualified_name} nodes, expected {loaded.config.n_layer}")
    return model


def _set_weights(graph: ir.Graph, loaded: LoadedModel) -> None:
    """Gives every parameter its value. Raises ExportError if the graph's parameters are not the model's."""
    parameters = dict(loaded.model.named_parameters())
    in_graph = {name for name in graph.initializers if not name.startswith("constant.")}
    if in_graph != set(parameters):
        raise ExportError(f"the graph's parameters differ from the model's: {sorted(in_graph ^ set(parameters))}")
    for name, parameter in parameters.items():
        graph.initializers[name].const_value = ir.Tensor(parameter.detach().numpy(), name=name)


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


def set_interface(graph: ir.Graph, config: AndreaConfig) -> None:
    """States the boundary's dimensions. Raises ExportError if the graph's names or their order differ."""
    _set_dims("inputs", graph_inputs(config), graph.inputs)
    _set_dims("outputs", graph_outputs(config), graph.outputs)
    graph.name = "andrea"
    for node in graph:
        for value in node.outputs:  # inner shapes are the exporter's guesses; every runtime infers its own
            if value not in graph.outputs:
                value.shape = None


def _set_dims(kind: str, specs: Sequence[TensorSpec], values: Sequence[ir.Value]) -> None:
    found, expected = [value.name for value in values], [spec.name for spec in specs]
    if found != expected:
        raise ExportError(f"the graph's {kind} are {found}, expected {expected}")
    for spec, value in zip(specs, values, strict=True):
        value.shape = ir.Shape(spec.dims)
