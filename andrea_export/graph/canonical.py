"""The canonical ONNX file: one fp32 graph that onnxruntime, TensorRT with the plugin and TensorRT without all take.

One block is traced by ``torch.onnx.export``, then instantiated ``n_layer`` times: tracing costs the same for 2 blocks
and for 24, and every block is the same graph by construction. That the result is the torch model is not assumed from
this: ``validate`` compares every layer of every block.

Owns the graph's names. A value that a layer produces is named by the layer's module path (``blocks.3.mlp.gelu``), and
so is the node that produces it; a layer's inner nodes are ``<module path>/<op type>``.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from andrea_export import __version__
from andrea_export.core.errors import ExportError, first_line
from andrea_export.core.names import graph_inputs, graph_outputs, present_names
from andrea_export.operators.rows import andrea_gelu
from andrea_export.weights.checkpoint import CONFIG_KEY, WEIGHTS_KEY, LoadedModel, WeightsOrigin
from andrea_model.config import AndreaConfig

if TYPE_CHECKING:
    import onnx_ir as ir
    import torch

OPSET = 23  # the first with Attention, which is what keeps softmax(q·kᵀ)·v one node
WEIGHTS_FILE = "model.onnx.data"
MODULE_KEY = "andrea.module"  # node metadata: the module path

# Values smaller than this stay inside the .onnx file: shapes and axes, never weights worth mapping.
EXTERNAL_THRESHOLD_BYTES = 1024


def export_canonical(loaded: LoadedModel, folder: Path) -> Path:
    """Writes ``model.onnx`` and ``model.onnx.data`` into the folder; returns the first. Same model, same bytes.

    Raises: ExportError if tracing fails, or gives a graph without one GELU node a block.
    """
    import onnx_ir as ir

    model = canonical_graph(loaded)
    path = folder / "model.onnx"
    ir.save(model, path, external_data=WEIGHTS_FILE, size_threshold_bytes=EXTERNAL_THRESHOLD_BYTES)
    return path


def canonical_graph(loaded: LoadedModel) -> ir.Model:
    """The canonical graph in memory; its initializers share the torch model's memory."""
    model = _trace_one_block(loaded.config)
    graph = model.graph
    _name_by_module(graph)
    _instantiate_blocks(graph, loaded.config)
    _set_weights(graph, loaded)
    _set_interface(graph, loaded.config)
    _add_function_body(model)
    model.producer_name = "andrea-export"
    model.producer_version = __version__
    model.metadata_props.clear()
    model.metadata_props.update(
        {
            CONFIG_KEY: json.dumps(asdict(loaded.config)),
            WEIGHTS_KEY: str(loaded.origin),
            "andrea.origin": json.dumps(asdict(loaded.origin)),
        }
    )
    op = andrea_gelu()
    num_gelus = sum(node.op_type == op.op_type and node.domain == op.domain for node in graph)
    if num_gelus != loaded.config.n_layer:
        raise ExportError(f"the graph has {num_gelus} {op.qualified_name} nodes, expected {loaded.config.n_layer}")
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class CanonicalInfo:
    """What a canonical ONNX file says of itself."""

    config: AndreaConfig
    origin: WeightsOrigin


def load_graph(path: Path) -> onnx.ModelProto:
    """The graph of an ONNX file, its weights left where they are. Raises ExportError for a file that holds none."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        model = onnx.load(path, load_external_data=False)
    except (DecodeError, OSError, ValueError) as error:
        raise ExportError(f"{path.name} is no ONNX file: {first_line(error)}", hint="build it again") from None
    if not model.graph.node:
        raise ExportError(f"{path.name} holds no graph", hint="build it again")
    return model


def read_canonical_info(path: Path) -> CanonicalInfo | None:
    """The configuration and origin in an ONNX file's metadata; None where it is not one of ours."""
    model = onnx.load(path, format="protobuf", load_external_data=False)  # whatever the file is called
    properties = {entry.key: entry.value for entry in model.metadata_props}
    try:
        return CanonicalInfo(
            config=AndreaConfig(**json.loads(properties[CONFIG_KEY])),
            origin=WeightsOrigin(**json.loads(properties["andrea.origin"])),
        )
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


# --- tracing ----------------------------------------------------------------------------------------------------


def _trace_one_block(config: AndreaConfig) -> ir.Model:
    """The graph of a one-block model under ``torch.onnx.export``, its GELU the custom operator."""
    import torch
    from onnxscript.optimizer import optimize_ir

    from andrea_model.model import Andrea, Mlp, build_model

    op = andrea_gelu()

    class SymbolicGelu(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.onnx.ops.symbolic(
                op.qualified_name,
                (x,),
                attrs={"plugin_namespace": op.plugin_namespace, "plugin_version": op.plugin_version},
                dtype=x.dtype,
                shape=x.shape,
                version=op.opset_version,
            )

    class FlatInterface(torch.nn.Module):
        def __init__(self, model: Andrea) -> None:
            super().__init__()
            self.model = model

        def forward(
            self, input_ids: Any, attention_mask: Any, position_ids: Any, past_key: Any, past_value: Any
        ) -> Any:
            logits, present = self.model(input_ids, attention_mask, position_ids, [(past_key, past_value)])
            return (logits, *present[0])

    one_block = build_model(replace(config, n_layer=1))
    # The exporter merges equal initializers, so no two parameters of the traced model may be equal.
    generator = torch.Generator().manual_seed(0)
    for parameter in one_block.parameters():
        parameter.normal_(generator=generator)
    for module in list(one_block.modules()):
        if isinstance(module, Mlp):
            module.register_module("gelu", SymbolicGelu())

    # Sizes that differ from one another and from 1: no dimension is mistaken for a constant or for another one.
    batch, sequence, past = 2, 3, 4
    ids = torch.zeros(batch, sequence, dtype=torch.long)
    cache = torch.zeros(batch, config.n_head, past, config.d_head)
    arguments = (ids, torch.ones(batch, past + sequence, dtype=torch.long), ids.clone(), cache, cache.clone())
    dims = {name: torch.export.Dim(name) for name in ("batch", "sequence", "past", "total")}
    by_axes = (
        {0: "batch", 1: "sequence"},
        {0: "batch", 1: "total"},
        {0: "batch", 1: "sequence"},
        *2 * ({0: "batch", 2: "past"},),
    )
    shapes = tuple({axis: dims[name] for axis, name in axes.items()} for axes in by_axes)
    exporter_log = logging.getLogger("torch.onnx")
    level = exporter_log.level
    try:
        # The exporter reports each torchvision operator it cannot register; this model has none.
        exporter_log.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                FlatInterface(one_block),
                arguments,
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=shapes,
                input_names=[
                    "input_ids",
                    "attention_mask",
                    "position_ids",
                    "past_key_values.0.key",
                    "past_key_values.0.value",
                ],
                output_names=["logits", *present_names(0)],
                optimize=False,
                verbose=False,
            )
            assert program is not None
            optimize_ir(program.model, should_fold=_folds_no_weight)
    except (MemoryError, OSError, ImportError):
        raise
    except Exception as error:  # the exporter's own errors have no common base
        causes = list(_causes(error))
        if any(isinstance(cause, KeyboardInterrupt) for cause in causes):  # it makes one of Ctrl-C, too
            raise KeyboardInterrupt from error
        versions = ", ".join(
            f"{name} {importlib.metadata.version(name)}" for name in ("torch", "onnxscript", "onnx-ir")
        )
        raise ExportError(
            f"torch.onnx.export failed: {first_line(causes[-1])}",
            hint=f"releases that do not fit each other? {versions}",
        ) from error
    finally:
        exporter_log.setLevel(level)
    return program.model


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception, what it was raised from, and so on to the first one."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        yield cause
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__


def _folds_no_weight(node: ir.Node) -> bool | None:
    """False for an operation on a weight, None (the optimizer decides) for any other.

    The optimizer computes operations on constants once and for all. On shapes and axes it may; on a small model's
    weights it must not, since the traced weights are not the model's: it would fold the head's transposed embedding.
    """
    weights = (value for value in node.inputs if value is not None and value.is_initializer())
    return False if any(value.dtype is not None and value.dtype.is_floating_point() for value in weights) else None


# --- names ------------------------------------------------------------------------------------------------------


def _module_path(node: ir.Node) -> str | None:
    """The innermost module a traced node belongs to, or None where the exporter lost it."""
    scopes = node.metadata_props.get("pkg.torch.onnx.name_scopes")
    if scopes is None:
        return None
    modules = [scope for scope in json.loads(scopes.replace("'", '"'))[:-1] if scope.startswith("model.")]
    return modules[-1].removeprefix("model.") if modules else ""


def _name_by_module(graph: ir.Graph) -> None:
    """Names every node, value and initializer by module path; strips the exporter's notes (they hold local paths)."""
    nodes = list(graph)
    module_of = {node: _module_path(node) for node in nodes}
    for node in reversed(nodes):
        if module_of[node] is None:  # an optimizer's replacement: it belongs where its result is used
            module_of[node] = next((module_of[use.node] for value in node.outputs for use in value.uses()), "")
    modules = {str(module_of[node]) for node in nodes}
    leaves = {module for module in modules if not any(other.startswith(f"{module}.") for other in modules)}
    last_of_module = {module_of[node]: node for node in nodes}
    graph_outputs_now = set(graph.outputs)
    taken: set[str] = set()
    for node in nodes:
        module = module_of[node] or ""
        is_result = module in leaves - {""} and last_of_module[module] is node
        label = module if is_result else _unused(f"{module or 'graph'}/{node.op_type}", taken)
        node.name = label
        node.doc_string = None
        node.metadata_props.clear()
        node.metadata_props[MODULE_KEY] = module
        for index, value in enumerate(node.outputs):
            value.metadata_props.clear()
            if value not in graph_outputs_now:
                value.name = label if index == 0 else f"{label}:{index}"
    for constant_index, value in enumerate(list(graph.initializers.values())):
        value.metadata_props.clear()
        name = str(value.name)
        value.name = name.removeprefix("model.") if name.startswith("model.") else f"constant.{constant_index}"


def _unused(label: str, taken: set[str]) -> str:
    name, count = label, 1
    while name in taken:
        count += 1
        name = f"{label}.{count}"
    taken.add(name)
    return name


# --- blocks -----------------------------------------------------------------------------------------------------

_FIRST = "blocks.0."


def _instantiate_blocks(graph: ir.Graph, config: AndreaConfig) -> None:
    """Turns the traced block into ``n_layer`` of them, each fed by the one before."""
    import onnx_ir as ir

    template = [node for node in graph if node.metadata_props[MODULE_KEY].startswith("blocks.0")]
    inside = {value for node in template for value in node.outputs}
    stream_in = next(node for node in graph if node.name == "embed_residual").outputs[0]
    stream_out = next(node for node in template if node.name == f"{_FIRST}mlp_residual").outputs[0]
    after_blocks = [use for use in stream_out.uses() if use.node not in set(template)]
    stream = stream_out
    insert_after = template[-1]
    for index in range(1, config.n_layer):
        replaced: dict[ir.Value | None, ir.Value | None] = {None: None, stream_in: stream}

        def instance_of(value: ir.Value | None, index: int = index, replaced: Any = replaced) -> ir.Value | None:
            if value in replaced:
                return replaced[value]  # type: ignore[no-any-return]
            name = str(value.name) if value is not None else ""
            is_parameter = value is not None and value.is_initializer() and name.startswith(_FIRST)
            is_cache = name.startswith("past_key_values.0.")
            if not (is_parameter or is_cache or value in inside):
                return value  # shared by all blocks: the mask, axes, shapes
            assert value is not None
            copy = ir.Value(name=_of_block(name, index), shape=value.shape, type=value.type)
            if is_parameter:
                copy.const_value = value.const_value
                graph.register_initializer(copy)
            if is_cache:
                graph.inputs.append(copy)
            replaced[value] = copy
            return copy

        instances = []
        for node in template:
            instance = ir.Node(
                node.domain,
                node.op_type,
                inputs=[instance_of(value) for value in node.inputs],
                attributes=list(node.attributes.values()),
                outputs=[instance_of(value) for value in node.outputs],  # type: ignore[misc]
                name=_of_block(str(node.name), index),
                metadata_props={MODULE_KEY: _of_block(node.metadata_props[MODULE_KEY], index)},
            )
            instances.append(instance)
        graph.insert_after(insert_after, instances)
        insert_after = instances[-1]
        stream = replaced[stream_out]  # type: ignore[assignment]
    for use in after_blocks:
        use.node.replace_input_with(use.idx, stream)
    by_name = {value.name: value for node in graph for value in node.outputs}
    graph.outputs[:] = [by_name[spec.name] for spec in graph_outputs(config)]


def _of_block(name: str, index: int) -> str:
    for prefix in ("blocks.", "past_key_values.", "present."):
        if name.startswith(f"{prefix}0"):
            return f"{prefix}{index}{name[len(prefix) + 1 :]}"
    raise ExportError(f"'{name}' is inside a block but not named by it")


# --- weights, interface, function body --------------------------------------------------------------------------


def _set_weights(graph: ir.Graph, loaded: LoadedModel) -> None:
    """Gives every parameter its value. Raises ExportError if the graph's parameters are not the model's."""
    import onnx_ir as ir

    parameters = dict(loaded.model.named_parameters())
    in_graph = {name for name in graph.initializers if not name.startswith("constant.")}
    if in_graph != set(parameters):
        raise ExportError(f"the graph's parameters differ from the model's: {sorted(in_graph ^ set(parameters))}")
    for name, parameter in parameters.items():
        graph.initializers[name].const_value = ir.Tensor(parameter.detach().numpy(), name=name)


def _set_interface(graph: ir.Graph, config: AndreaConfig) -> None:
    """States the boundary: names, order and symbolic dimensions. Raises ExportError if the graph's differ."""
    import onnx_ir as ir

    def check(kind: str, specs: Iterable[Any], values: Iterable[ir.Value]) -> None:
        specs, values = list(specs), list(values)
        if [spec.name for spec in specs] != [value.name for value in values]:
            raise ExportError(
                f"the graph's {kind} are {[value.name for value in values]}, expected {[s.name for s in specs]}"
            )
        for spec, value in zip(specs, values, strict=True):
            value.shape = ir.Shape(spec.dims)

    check("inputs", graph_inputs(config), graph.inputs)
    check("outputs", graph_outputs(config), graph.outputs)
    graph.name = "andrea"
    for node in graph:
        for value in node.outputs:  # inner shapes are the exporter's guesses; every runtime infers its own
            if value not in graph.outputs:
                value.shape = None


def _add_function_body(model: ir.Model) -> None:
    """Adds ``com.andrea::AndreaGelu`` as a local function, for every runtime that has no plugin."""
    import onnx_ir as ir

    op = andrea_gelu()
    body = onnx.parser.parse_function(
        f'<opset_import: ["" : {OPSET}], domain: "{op.domain}">\n{op.op_type} (x) => (y) {{ {op.function_body} }}'
    )
    function = ir.from_proto(body)
    assert isinstance(function, ir.Function)
    model.functions[function.identifier()] = function
    model.opset_imports[op.domain] = op.opset_version
