"""The graphs for onnxruntime's CPU provider: which passes make each precision.

    fp32   the canonical arithmetic over a shared cache; its weights are the canonical file's, none is stored again
    int8   this project's own operators (plugins/cpu) over weights with one scale an output; head and embedding share
           theirs
    int4   the same over weights with 4 bits, in blocks; what stays int8, as in int8

One graph and one copy of the weights serve prompts and tokens. What stays as it is was measured too
(docs/measurements/cpu-runtime.md): onnxruntime's SkipLayerNormalization is eight times slower than Add and
LayerNormalization, and its FastGelu no faster than Add and Gelu.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from andrea_export.core.errors import UsageError
from andrea_export.core.precision import OrtPrecision
from andrea_export.graph.canonical import EXTERNAL_THRESHOLD_BYTES
from andrea_export.graph.passes.gelu_nodes import NativeGelu
from andrea_export.graph.passes.graph_edits import run_passes
from andrea_export.operators.sources import andrea_gelu
from andrea_export.targets.ort_cpu.files import files_of
from andrea_export.targets.ort_cpu.options import OrtCpu
from andrea_export.targets.ort_cpu.passes.half_cache import HalfCache
from andrea_export.targets.ort_cpu.passes.linear_layers import BLOCK_LINEARS
from andrea_export.targets.ort_cpu.passes.logits_to_keep import LogitsToKeep
from andrea_export.targets.ort_cpu.passes.packed_weights import PackedEmbedding, PackedLinears
from andrea_export.targets.ort_cpu.passes.shared_cache import SharedCache
from andrea_export.targets.ort_cpu.passes.tied_head import TiedHead
from andrea_model.config import AndreaConfig

# A mapped tensor starts on a page of its own.
_ALIGNMENT_BYTES = 4096
_BITS = {"int8": 8, "int4": 4}

NEXT_HIGHER: Mapping[str, str] = {"int4": "int8", "int8": "fp32"}
"""What a layer that a recipe keeps higher becomes."""


def derive_ort_cpu(
    model: Path, config: AndreaConfig, *, precision: OrtPrecision, options: OrtCpu, folder: Path
) -> None:
    """Writes the files of this precision into the folder, which holds the canonical file's weights too.

    Raises: PassError if the file is not a canonical one, UsageError as ``linear_kinds`` does.
    """
    kinds = linear_kinds(config, precision, options)
    files = files_of(precision)
    graph = ir.load(model)
    run_passes(graph, NativeGelu(andrea_gelu()), SharedCache())
    if files.weights is None:
        run_passes(graph, TiedHead(), LogitsToKeep())
    else:
        bits = {name: _BITS[kind] for name, kind in kinds.items() if kind in _BITS}
        run_passes(
            graph, HalfCache(), LogitsToKeep(), PackedLinears(bits, widest=options.int4_block), PackedEmbedding()
        )
        _store(graph, folder, files.weights)
    ir.save(graph, folder / files.graph)


def linear_kinds(config: AndreaConfig, precision: OrtPrecision, options: OrtCpu) -> dict[str, str]:
    """Module path of every linear layer → fp32, int8 or int4.

    Raises: UsageError for a layer to keep higher that the model does not have, and if none is left in this precision.
    """
    modules, key = _modules(config), f"{precision}_keep"
    kept = {"int8": options.int8_keep, "int4": options.int4_keep}.get(precision, ())
    higher = _chosen(modules, kept, key)
    if len(higher) == len(modules):
        raise UsageError(
            f"ort_cpu.{key} = {list(kept)} leaves none of the model's {len(modules)} linear layers in {precision}",
            hint=f"give a recipe with {key} = [] under [ort_cpu]",
        )
    return {module: NEXT_HIGHER[precision] if module in higher else precision for module in modules}


def check_layers(config: AndreaConfig, precisions: Iterable[OrtPrecision], options: OrtCpu) -> None:
    """Raises UsageError for a layer that a recipe names and the model does not have, whatever is built of it.

    And for one of ``precisions`` that no layer would be in.
    """
    for key in ("int8_keep", "int4_keep"):
        _chosen(_modules(config), getattr(options, key), key)
    for precision in precisions:
        linear_kinds(config, precision, options)


def _modules(config: AndreaConfig) -> tuple[str, ...]:
    return tuple(f"blocks.{index}.{name}" for index in range(config.n_layer) for name in BLOCK_LINEARS)


def _chosen(modules: Sequence[str], names: Sequence[str], key: str) -> set[str]:
    """The modules a recipe's key names. Raises: UsageError for a name that fits no module."""
    unknown = [name for name in names if not any(_means(name, module) for module in modules)]
    if unknown:
        raise UsageError(
            f"ort_cpu.{key}: the model has no linear layer {', '.join(unknown)}",
            hint=f"a block has {', '.join(BLOCK_LINEARS)}; name one as {modules[-1]}, all of a block as "
            f"{modules[-1].rsplit('.', 2)[0]}, one of every block as {BLOCK_LINEARS[-1]}",
        )
    return {module for module in modules if any(_means(name, module) for name in names)}


def _means(name: str, module: str) -> bool:
    _, index, layer = module.split(".", 2)
    return name in (module, f"blocks.{index}", layer)


def _store(model: ir.Model, folder: Path, weights: str) -> None:
    """Writes the large weights to the precision's data file, each on a page of its own."""
    with (folder / weights).open("wb") as data:
        for name, value in model.graph.initializers.items():
            tensor = value.const_value
            if tensor is None or tensor.nbytes < EXTERNAL_THRESHOLD_BYTES:
                continue
            data.write(b"\0" * (-data.tell() % _ALIGNMENT_BYTES))
            value.const_value = ir.ExternalTensor(
                location=weights,
                offset=data.tell(),
                length=tensor.nbytes,
                dtype=tensor.dtype,
                shape=ir.Shape(tensor.numpy().shape),
                name=name,
                base_dir=folder,
            )
            data.write(tensor.tobytes())
