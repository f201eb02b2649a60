"""The graphs for onnxruntime's CPU provider: which passes make each precision, and which bytes they share.

    fp32   the canonical arithmetic over a shared cache; its weights are the canonical file's, none is stored again
    int8   DynamicQuantizeMatMul, for prompts and tokens alike: one graph, one copy of the weights; or, where the recipe
           says so, that for prompts and MatMulNBits to decode
    int4   two graphs: MatMulNBits with 4 bits decodes (and what stays int8, as in int8), and the prompt goes through
           int8: 4-bit kernels unpack their weights for every few rows, and take twice as long

What stays as it is was measured too (docs/measurements/cpu-runtime.md): onnxruntime's SkipLayerNormalization is eight
times slower than Add and LayerNormalization, and its FastGelu no faster than Add and Gelu.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from andrea_export.core.errors import PassError, UsageError
from andrea_export.core.precision import OrtPrecision
from andrea_export.graph.canonical import EXTERNAL_THRESHOLD_BYTES
from andrea_export.graph.passes.gelu_nodes import NativeGelu
from andrea_export.graph.passes.graph_edits import run_passes
from andrea_export.operators.sources import andrea_gelu
from andrea_export.targets.ort_cpu.files import files_of
from andrea_export.targets.ort_cpu.options import OrtCpu
from andrea_export.targets.ort_cpu.passes.blockwise_weights import BlockwiseWeights
from andrea_export.targets.ort_cpu.passes.dynamic_int8 import DynamicInt8
from andrea_export.targets.ort_cpu.passes.half_cache import HalfCache
from andrea_export.targets.ort_cpu.passes.linear_layers import BLOCK_LINEARS
from andrea_export.targets.ort_cpu.passes.logits_to_keep import LogitsToKeep
from andrea_export.targets.ort_cpu.passes.quantized_embedding import BLOCKS, ROWS, QuantizedEmbedding
from andrea_export.targets.ort_cpu.passes.scaled_rows import ScaledRows
from andrea_export.targets.ort_cpu.passes.shared_cache import SharedCache
from andrea_export.targets.ort_cpu.passes.tied_head import TiedHead
from andrea_export.targets.ort_cpu.passes.without_logits import WithoutLogits
from andrea_model.config import AndreaConfig

# One page: a mapped tensor starts on its own, and two mappings of one tensor are the same page.
_ALIGNMENT_BYTES = 4096

NEXT_HIGHER: Mapping[str, str] = {"int4": "int8", "int8": "fp32"}
"""What a layer that a recipe keeps higher becomes."""


def derive_ort_cpu(
    model: Path, config: AndreaConfig, *, precision: OrtPrecision, options: OrtCpu, folder: Path
) -> None:
    """Writes the files of this precision into the folder, which holds the canonical file's weights too.

    Raises: PassError if the file is not a canonical one, UsageError as ``linear_kinds`` does.
    """
    kinds = linear_kinds(config, precision, options)
    files = files_of(precision, options.int8_decode)
    decode = ir.load(model)
    _common(decode, precision)
    of_kind = {kind: tuple(name for name, own in kinds.items() if own == kind) for kind in ("int8", "int4")}
    in_blocks = (BlockwiseWeights(of_kind["int8"], bits=8),)
    run_passes(
        decode,
        BlockwiseWeights(of_kind["int4"], bits=4, widest=options.int4_block),
        *(in_blocks if options.int8_decode == "blockwise" else _dynamic_int8(of_kind["int8"], precision, options)),
    )
    if precision == "fp32":
        run_passes(decode, TiedHead(), LogitsToKeep())
        ir.save(decode, folder / files.decode)
        return
    assert files.weights is not None
    run_passes(decode, QuantizedEmbedding(), LogitsToKeep())
    graphs = {files.decode: decode}
    if files.prefill != files.decode:
        prefill = ir.load(model)
        _common(prefill, precision)
        run_passes(
            prefill,
            *_dynamic_int8(tuple(name for name, kind in kinds.items() if kind != "fp32"), precision, options),
            QuantizedEmbedding(),
            WithoutLogits(),
        )
        graphs[files.prefill] = prefill
    _write(graphs, folder, files.weights)


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
    for key in ("int8_keep", "int8_scaled_rows", "int4_keep"):
        _chosen(_modules(config), getattr(options, key), key)
    for precision in precisions:
        linear_kinds(config, precision, options)


def scaled_rows(modules: Iterable[str], precision: OrtPrecision, options: OrtCpu) -> tuple[str, ...]:
    """Those that bring their rows to one size where they are DynamicQuantizeMatMul.

    In int8 alone: int4's prompts diverge no less for it.
    """
    named = options.int8_scaled_rows if precision == "int8" else ()
    return tuple(module for module in modules if any(_means(name, module) for name in named))


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


def _dynamic_int8(
    modules: tuple[str, ...], precision: OrtPrecision, options: OrtCpu
) -> tuple[ir.passes.InPlacePass, ...]:
    """The passes that make these layers int8 with activations rounded in each run."""
    return DynamicInt8(modules), ScaledRows(scaled_rows(modules, precision, options))


def _common(model: ir.Model, precision: OrtPrecision) -> None:
    run_passes(model, NativeGelu(andrea_gelu()), SharedCache())
    if precision != "fp32":
        run_passes(model, HalfCache())


def _write(graphs: Mapping[str, ir.Model], folder: Path, weights: str) -> None:
    """Writes the graphs and one data file: a tensor that both have, or that has two shapes, is in it once."""
    stored: dict[str, tuple[int, int]] = {}
    with (folder / weights).open("wb") as data:
        for graph in (model.graph for model in graphs.values()):
            for name, value in graph.initializers.items():
                tensor = value.const_value
                if tensor is None or tensor.nbytes < EXTERNAL_THRESHOLD_BYTES:
                    continue
                key = BLOCKS if name == ROWS else name
                if key not in stored:
                    data.write(b"\0" * (-data.tell() % _ALIGNMENT_BYTES))
                    stored[key] = (data.tell(), tensor.nbytes)
                    data.write(tensor.tobytes())
                offset, length = stored[key]
                if length != tensor.nbytes:
                    raise PassError(f"{name} has {tensor.nbytes} bytes here and {length} in another graph")
                value.const_value = ir.ExternalTensor(
                    location=weights,
                    offset=offset,
                    length=length,
                    dtype=tensor.dtype,
                    shape=ir.Shape(tensor.numpy().shape),
                    name=name,
                    base_dir=folder,
                )
    for name, model in graphs.items():
        ir.save(model, folder / name)
