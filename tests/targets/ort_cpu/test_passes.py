"""The passes for onnxruntime's CPU provider: each alone equals torch, keeps the names, refuses other graphs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from andrea_export.core.errors import PassError
from andrea_export.core.names import MODULE_KEY
from andrea_export.graph.passes.gelu_nodes import TrtPluginsDomain
from andrea_export.graph.passes.graph_edits import constant, run_passes
from andrea_export.operators.sources import andrea_gelu
from andrea_export.sessions.base import step_feeds
from andrea_export.sessions.onnxruntime import OnnxSession
from andrea_export.targets.ort_cpu.passes.blockwise_weights import BlockwiseWeights
from andrea_export.targets.ort_cpu.passes.dynamic_int8 import DynamicInt8
from andrea_export.targets.ort_cpu.passes.half_cache import HalfCache
from andrea_export.targets.ort_cpu.passes.linear_layers import BLOCK_LINEARS
from andrea_export.targets.ort_cpu.passes.logits_to_keep import LogitsToKeep
from andrea_export.targets.ort_cpu.passes.quantized_embedding import QuantizedEmbedding
from andrea_export.targets.ort_cpu.passes.scaled_rows import ScaledRows
from andrea_export.targets.ort_cpu.passes.shared_cache import SharedCache
from andrea_export.targets.ort_cpu.passes.tied_head import TiedHead
from andrea_export.targets.ort_cpu.passes.without_logits import WithoutLogits
from andrea_export.targets.ort_cpu.session import OrtCpuSession
from andrea_export.targets.ort_cpu.torch_quantized import quantized_part
from andrea_export.weights.load import LoadedModel

LINEARS = tuple(f"blocks.{index}.{name}" for index in range(2) for name in BLOCK_LINEARS)
IDS = [5, 17, 42, 300, 8, 0, 320, 99]


def rewritten(source: Path, folder: Path, *passes: ir.passes.InPlacePass) -> Path:
    """The canonical file after the passes, self-contained and checked."""
    model = ir.load(source)
    run_passes(model, *passes)
    path = folder / "rewritten.onnx"
    ir.save(model, path, external_data="rewritten.data")
    onnx.checker.check_model(path)
    return path


def torch_logits(loaded: LoadedModel, ids: Sequence[int]) -> np.ndarray:
    with torch.inference_mode():
        return loaded.model(torch.tensor([list(ids)]))[0].numpy()


def empty_cache(loaded: LoadedModel, past: int = 0) -> dict[str, np.ndarray]:
    config = loaded.config
    shape = (1, config.n_head, past, config.d_head)
    return {
        f"past_key_values.{i}.{part}": np.zeros(shape, np.float32)
        for i in range(config.n_layer)
        for part in ("key", "value")
    }


def bound(loaded: LoadedModel) -> float:
    """Four times what torch's fp32 logits are off its fp64 ones, the factor of ``judge.K``."""
    with torch.inference_mode():
        exact = copy.deepcopy(loaded.model).double()(torch.tensor([IDS]))[0].numpy()
    return 4 * float(np.abs(torch_logits(loaded, IDS) - exact).max())


@pytest.mark.parametrize("passes", [[TiedHead()], [TiedHead(), LogitsToKeep()]], ids=["tied", "tied+keep"])
def test_the_head_passes_equal_torch(
    tiny: LoadedModel, tiny_onnx: Path, tmp_path: Path, passes: list[ir.passes.InPlacePass]
) -> None:
    path = rewritten(tiny_onnx, tmp_path, *passes)
    wanted = torch_logits(tiny, IDS)
    with OnnxSession(path) as session:
        keeps = "logits_to_keep" in session.input_names
        for kept in (1, 3, 8) if keeps else (8,):
            feeds = {**step_feeds(IDS, 0, empty_cache(tiny)), "logits_to_keep": np.array([kept])}
            logits = session.run(feeds)["logits"]
            assert logits.shape == (1, kept, tiny.config.vocab_size)
            assert np.abs(logits - wanted[:, -kept:]).max() <= bound(tiny)


@pytest.mark.parametrize("kept", [1, 3])
def test_the_last_blocks_mlp_sees_the_kept_positions_alone(
    tiny: LoadedModel, tiny_onnx: Path, tmp_path: Path, kept: int
) -> None:
    path = rewritten(tiny_onnx, tmp_path, TiedHead(), LogitsToKeep())
    cut = ("blocks.1.attn.proj", "blocks.1.attn_residual", "blocks.1.mlp.fc", "blocks.1.mlp_residual", "ln_f")
    whole = ("blocks.0.mlp.fc", "blocks.1.ln_1", "blocks.1.attn.qkv", "blocks.1.attn.context")
    with OnnxSession(path, taps=(*cut, *whole)) as session:
        found = session.run({**step_feeds(IDS, 0, empty_cache(tiny)), "logits_to_keep": np.array([kept])})
    assert {name: found[name].shape[1] for name in (*cut, *whole)} == {
        **dict.fromkeys(cut, kept),
        **dict.fromkeys(whole, len(IDS)),
    }


def test_the_proofs_session_gives_the_last_token_what_a_prompt_in_use_gives(
    tiny: LoadedModel, tiny_onnx: Path, tmp_path: Path
) -> None:
    """int8 rounds over the positions that are kept, so these are other logits than those beside all others."""
    path = rewritten(tiny_onnx, tmp_path, SharedCache(), DynamicInt8(LINEARS), LogitsToKeep())
    with OrtCpuSession(path, tiny.config, name="int8") as session:
        found = session.run(step_feeds(IDS, 0, empty_cache(tiny)))["logits"]
    with OnnxSession(path) as plain:
        feeds = {
            **empty_cache(tiny, len(IDS)),
            "input_ids": np.array([IDS]),
            "position_ids": np.arange(len(IDS))[None],
            "seqlens_k": np.array([len(IDS) - 1], np.int32),
            "total_sequence_length": np.array([len(IDS)], np.int32),
        }
        last = plain.run({**feeds, "logits_to_keep": np.array([1])})["logits"]
        every = plain.run({**feeds, "logits_to_keep": np.array([len(IDS)])})["logits"]
    assert np.array_equal(found[:, -1:], last) and np.array_equal(found[:, :-1], every[:, :-1])
    assert not np.array_equal(last, every[:, -1:])


@pytest.mark.parametrize("num_past", [0, 1, 5])
def test_the_shared_cache_equals_torch(tiny: LoadedModel, tiny_onnx: Path, tmp_path: Path, num_past: int) -> None:
    path = rewritten(tiny_onnx, tmp_path, SharedCache())
    with OrtCpuSession(path, tiny.config, name="shared") as session:
        before = session.run(step_feeds(IDS[:num_past], 0, empty_cache(tiny))) if num_past else {}
        past = {f"past_key_values.{k.removeprefix('present.')}": v for k, v in before.items() if k != "logits"}
        after = session.run(step_feeds(IDS[num_past:], num_past, past or empty_cache(tiny)))
    assert np.abs(after["logits"] - torch_logits(tiny, IDS)[:, num_past:]).max() <= bound(tiny)
    assert after["present.1.value"].shape[2] == len(IDS)


@pytest.mark.parametrize("num_past", [0, 5])
def test_a_cache_in_half_precision_rounds_what_attention_takes_and_gives(
    tiny: LoadedModel, tiny_onnx: Path, tmp_path: Path, num_past: int
) -> None:
    path = rewritten(tiny_onnx, tmp_path, SharedCache(), HalfCache())
    rounded = copy.deepcopy(tiny.model)
    for block in rounded.blocks:
        for module in (block.attn.qkv, block.attn.context):
            module.register_forward_hook(lambda _module, _inputs, output: output.half().float())
    with torch.inference_mode():
        same_way = rounded(torch.tensor([IDS]))[0].numpy()
    exact = torch_logits(tiny, IDS)
    with OrtCpuSession(path, tiny.config, name="half") as session:
        before = session.run(step_feeds(IDS[:num_past], 0, empty_cache(tiny))) if num_past else {}
        past = {f"past_key_values.{k.removeprefix('present.')}": v for k, v in before.items() if k != "logits"}
        after = session.run(step_feeds(IDS[num_past:], num_past, past or empty_cache(tiny)))
    assert np.array_equal(after["present.0.key"], after["present.0.key"].astype(np.float16))
    # Scores and sums are fp32; what is left is values of the second block that fall on the other side of a rounding.
    cost = np.abs(same_way - exact).max()
    assert np.abs(after["logits"] - same_way[:, num_past:]).max() < 0.5 * cost
    graph = ir.load(path).graph
    types = {str(value.name): value.dtype for value in (*graph.inputs, *graph.outputs)}
    assert {types[name] for name in types if "key" in name or "value" in name} == {ir.DataType.FLOAT16}
    assert {str(value.name) for node in graph for value in node.outputs} >= {"blocks.0.attn.context", "present.1.value"}


def test_half_precision_needs_a_shared_cache(tiny_onnx: Path) -> None:
    with pytest.raises(PassError, match="no GroupQueryAttention"):
        run_passes(ir.load(tiny_onnx), HalfCache())


def test_the_shared_cache_drops_the_mask_and_keeps_the_names(tiny_onnx: Path, tmp_path: Path) -> None:
    model = ir.load(rewritten(tiny_onnx, tmp_path, SharedCache()))
    inputs = [value.name for value in model.graph.inputs]
    assert inputs[:4] == ["input_ids", "seqlens_k", "total_sequence_length", "position_ids"]
    assert model.graph.outputs[0].name == "logits"
    names = {value.name for node in model.graph for value in node.outputs}
    assert {"blocks.0.attn.qkv", "blocks.1.attn.context", "present.0.key", "present.1.value"} <= names
    assert not any(node.op_type in ("Attention", "Concat", "Range", "Split", "Transpose") for node in model.graph
                   if node.name != "head/Transpose")  # fmt: skip


def test_rows_of_different_length_do_not_see_each_other(tiny: LoadedModel, tiny_onnx: Path, tmp_path: Path) -> None:
    path = rewritten(tiny_onnx, tmp_path, SharedCache())
    ids = np.array([[5, 17, 42, 9], [300, 8, 0, 0]])  # the second row has two tokens and two of padding
    feeds = {
        "input_ids": ids,
        "position_ids": np.array([[0, 1, 2, 3]] * 2),
        "seqlens_k": np.array([3, 1], np.int32),
        "total_sequence_length": np.array([4], np.int32),
    }
    cache = {name: np.zeros((2, *value.shape[1:2], 4, value.shape[3]), np.float32)
             for name, value in empty_cache(tiny).items()}  # fmt: skip
    with OnnxSession(path) as session:
        logits = session.run({**feeds, **cache})["logits"]
    assert np.abs(logits[0] - torch_logits(tiny, ids[0])[0]).max() <= bound(tiny)
    assert np.abs(logits[1, :2] - torch_logits(tiny, ids[1, :2])[0]).max() <= bound(tiny)


def test_a_graph_without_logits_still_fills_the_cache(tiny: LoadedModel, tiny_onnx: Path, tmp_path: Path) -> None:
    feeds = step_feeds(IDS, 0, empty_cache(tiny))
    with OnnxSession(tiny_onnx) as session:
        wanted = session.run(feeds)
    path = rewritten(tiny_onnx, tmp_path, WithoutLogits())
    with OnnxSession(path) as session:
        found = session.run(feeds)
    assert set(found) == set(wanted) - {"logits"}
    assert all(np.array_equal(found[name], wanted[name]) for name in found)
    assert not any(name.startswith(("ln_f", "blocks.1.mlp")) for name in ir.load(path).graph.initializers)


QUANTIZED: list[tuple[str, list[ir.passes.InPlacePass], str, dict[str, Any]]] = [
    ("dynamic int8", [DynamicInt8(LINEARS)], "int8", {"blockwise": False}),
    (
        "dynamic int8, rows of one size",
        [DynamicInt8(LINEARS), ScaledRows(LINEARS)],
        "int8",
        {"blockwise": False, "scaled_rows": LINEARS},
    ),
    (
        "dynamic int8, rows of one size in two steps",
        [DynamicInt8(LINEARS), ScaledRows(LINEARS[:3]), ScaledRows(LINEARS[3:])],
        "int8",
        {"blockwise": False, "scaled_rows": LINEARS},
    ),
    ("blocks of 8 bits", [BlockwiseWeights(LINEARS, bits=8)], "int8", {"blockwise": True}),
    ("blocks of 4 bits", [BlockwiseWeights(LINEARS, bits=4, widest=32)], "int4", {"blockwise": True}),
]


@pytest.mark.parametrize(("passes", "kind", "options"), [row[1:] for row in QUANTIZED], ids=[r[0] for r in QUANTIZED])
def test_quantised_graphs_equal_torch_quantised_the_same_way(
    tiny: LoadedModel,
    tiny_onnx: Path,
    tmp_path: Path,
    passes: list[ir.passes.InPlacePass],
    kind: str,
    options: dict[str, Any],
) -> None:
    path = rewritten(tiny_onnx, tmp_path, SharedCache(), HalfCache(), *passes, QuantizedEmbedding())
    reference = quantized_part(tiny.model, "", dict.fromkeys(LINEARS, kind), int4_block=32, **options)
    with torch.inference_mode():
        same_way = reference(torch.tensor([IDS]))[0].numpy()
    exact = torch_logits(tiny, IDS)
    with OrtCpuSession(path, tiny.config, name="quantised") as session:
        logits = session.run(step_feeds(IDS, 0, empty_cache(tiny)))["logits"]
    # Where both round the same way, they differ by activations that fall on the other side of a step: far less than
    # quantising itself costs. A wrong scale, layout or sign costs many times more.
    assert np.abs(logits - same_way).max() < 0.5 * np.abs(same_way - exact).max()
    names = {value.name for node in ir.load(path).graph for value in node.outputs}
    assert set(LINEARS) <= names


def test_rows_of_unlike_sizes_lose_none_when_brought_to_one(tmp_path: Path) -> None:
    """A row's error is a share of its own size; on the range of the largest row, a small one is lost."""
    generator = np.random.default_rng(0)
    sizes_M = np.array([1.0, 1e-3, 0.0, 30.0], np.float32)
    rows_MK = generator.standard_normal((4, 64), np.float32) * sizes_M[:, None]
    weight_KN, bias_N = (generator.standard_normal(shape, np.float32) for shape in ((64, 32), (32,)))
    errors_M = []
    for passes in ([DynamicInt8(("fc",))], [DynamicInt8(("fc",)), ScaledRows(("fc",))]):
        model = one_layer(weight_KN, bias_N)
        run_passes(model, *passes)
        ir.save(model, tmp_path / "layer.onnx")
        with OnnxSession(tmp_path / "layer.onnx") as session:
            y_MN = session.run({"x": rows_MK})["fc"]
        errors_M.append(np.abs(y_MN - (rows_MK @ weight_KN + bias_N)).max(axis=1))
    together, apart = errors_M
    typical = 8.0  # of a sum of 64 products of normal numbers
    assert (apart <= 0.05 * sizes_M * typical).all()
    assert together[1] > sizes_M[1] * typical


@pytest.mark.parametrize(("bits", "widest"), [(8, 128), (4, 128), (4, 32)])
def test_blocks_of_zeros_add_nothing(tmp_path: Path, bits: int, widest: int) -> None:
    """A trained model may have layers of zeros; the kernel's own rounding must not fill them."""
    generator = np.random.default_rng(0)
    model = one_layer(np.zeros((512, 32), np.float32), np.zeros(32, np.float32))
    run_passes(model, BlockwiseWeights(("fc",), bits=bits, widest=widest))
    ir.save(model, tmp_path / "layer.onnx")
    with OnnxSession(tmp_path / "layer.onnx") as session:
        y_MN = session.run({"x": generator.standard_normal((5, 512), np.float32) * 30})["fc"]
    assert not y_MN.any()


def one_layer(weight_KN: np.ndarray, bias_N: np.ndarray) -> ir.Model:
    """x·W + b as a canonical graph has it, under the module path ``fc``."""
    x = ir.Value(name="x", shape=ir.Shape(["M", len(weight_KN)]), type=ir.TensorType(ir.DataType.FLOAT))
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 23}, name="one")
    weight, bias = constant(graph, "fc.weight", weight_KN), constant(graph, "fc.bias", bias_N)
    product = ir.Node("", "MatMul", [x, weight], name="fc/MatMul", metadata_props={MODULE_KEY: "fc"})
    layer = ir.Node("", "Add", [product.outputs[0], bias], name="fc", metadata_props={MODULE_KEY: "fc"})
    layer.outputs[0].name = "fc"
    layer.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    graph.extend([product, layer])
    graph.outputs.append(layer.outputs[0])
    return ir.Model(graph, ir_version=10)


def test_the_tied_matrix_is_one_array_under_two_shapes(tiny_onnx: Path) -> None:
    model = ir.load(tiny_onnx)
    run_passes(model, QuantizedEmbedding())
    rows, blocks = (model.graph.initializers[f"token_embed.weight_{name}_int8"] for name in ("rows", "block"))
    assert rows.const_value is not None and blocks.const_value is not None
    assert rows.const_value.tobytes() == blocks.const_value.tobytes()
    assert "token_embed.weight" not in model.graph.initializers


def without(op_type: str) -> ir.passes.InPlacePass:
    """A fault: every node of one type becomes Identity."""

    class Broken(ir.passes.InPlacePass):
        def call(self, model: ir.Model) -> ir.passes.PassResult:
            for node in model.graph:
                if node.op_type == op_type:
                    node.op_type = "Identity"
            return ir.passes.PassResult(model, modified=True)

    return Broken()


def renamed(old: str, new: str) -> ir.passes.InPlacePass:
    """A fault: one node has another name, and belongs to no module."""

    class Broken(ir.passes.InPlacePass):
        def call(self, model: ir.Model) -> ir.passes.PassResult:
            (node,) = (node for node in model.graph if node.name == old)
            node.name = new
            node.metadata_props.clear()
            return ir.passes.PassResult(model, modified=True)

    return Broken()


REFUSED: list[tuple[list[ir.passes.InPlacePass], str]] = [
    ([SharedCache(), SharedCache()], "no Attention node"),
    ([without("Split"), SharedCache()], "expected Split"),
    ([without("Concat"), SharedCache()], "expected Concat"),
    ([TiedHead(), TiedHead()], "TiedHead \\(after TiedHead\\): value 'logits' comes from FusedMatMul"),
    ([TiedHead(), QuantizedEmbedding()], "value 'logits' comes from FusedMatMul"),
    ([LogitsToKeep(), LogitsToKeep()], "already has the input logits_to_keep"),
    ([WithoutLogits(), WithoutLogits()], "no output 'logits'"),
    ([WithoutLogits(), LogitsToKeep()], "no output 'logits'"),
    ([DynamicInt8(("blocks.7.mlp.fc",))], "no linear layer blocks.7.mlp.fc"),
    ([DynamicInt8(LINEARS), DynamicInt8(LINEARS)], "no linear layer blocks.0.attn.qkv"),
    (
        [renamed("blocks.1.attn_residual", "other"), LogitsToKeep()],
        "no blocks.1.attn.context or no blocks.1.attn_resid",
    ),
    ([renamed("blocks.1.attn.proj", "other"), LogitsToKeep()], "blocks.1.attn_residual does not add one value"),
    ([DynamicInt8(LINEARS), ScaledRows((LINEARS[0], LINEARS[0]))], "named twice"),
    ([ScaledRows(("blocks.0.attn.proj",))], "no DynamicQuantizeMatMul: blocks.0.attn.proj"),
    ([DynamicInt8(LINEARS), ScaledRows(LINEARS), ScaledRows(LINEARS)], "no DynamicQuantizeMatMul: blocks.0.attn.qkv"),
    ([TrtPluginsDomain(andrea_gelu()), TrtPluginsDomain(andrea_gelu())], "no com.andrea::AndreaGelu node"),
]


@pytest.mark.parametrize(("passes", "text"), REFUSED, ids=[text for _, text in REFUSED])
def test_graphs_a_pass_refuses(tiny_onnx: Path, passes: list[ir.passes.InPlacePass], text: str) -> None:
    with pytest.raises(PassError, match=text):
        run_passes(ir.load(tiny_onnx), *passes)


def test_trt_plugins_domain_leaves_only_the_plugin(tiny_onnx: Path) -> None:
    model = ir.load(tiny_onnx)
    run_passes(model, TrtPluginsDomain(andrea_gelu()))
    gelus = [node for node in model.graph if node.op_type == "AndreaGelu"]
    assert [node.domain for node in gelus] == ["trt.plugins"] * 2
    assert gelus[0].attributes["plugin_namespace"].value == "com.andrea"
    proto = ir.to_proto(model)
    assert not proto.functions
    assert {entry.domain: entry.version for entry in proto.opset_import} == {"": 23, "trt.plugins": 1}
