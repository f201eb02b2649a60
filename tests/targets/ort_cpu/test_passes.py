"""The passes for onnxruntime's CPU provider: each alone equals torch, keeps the names, refuses other graphs."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from andrea_export.core.errors import PassError
from andrea_export.core.names import MODULE_KEY
from andrea_export.graph.passes.gelu_nodes import NativeGelu, TrtPluginsDomain
from andrea_export.graph.passes.graph_edits import constant, run_passes
from andrea_export.operators.sources import andrea_gelu
from andrea_export.sessions.base import step_feeds
from andrea_export.sessions.onnxruntime import OnnxSession, SessionTuning
from andrea_export.targets.ort_cpu.passes.half_cache import HalfCache
from andrea_export.targets.ort_cpu.passes.linear_layers import BLOCK_LINEARS
from andrea_export.targets.ort_cpu.passes.logits_to_keep import LogitsToKeep
from andrea_export.targets.ort_cpu.passes.packed_weights import PackedEmbedding, PackedLinears
from andrea_export.targets.ort_cpu.passes.shared_cache import SharedCache
from andrea_export.targets.ort_cpu.passes.tied_head import TiedHead
from andrea_export.targets.ort_cpu.quantization import block_codes, channel_codes
from andrea_export.targets.ort_cpu.session import OrtCpuSession
from andrea_export.targets.ort_cpu.torch_quantized import quantized_part
from andrea_export.weights.load import LoadedModel

LINEARS = tuple(f"blocks.{index}.{name}" for index in range(2) for name in BLOCK_LINEARS)
EIGHT = dict.fromkeys(LINEARS, 8)
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


@pytest.mark.parametrize("num_past", [0, 1, 5])
def test_the_shared_cache_equals_torch(tiny: LoadedModel, tiny_onnx: Path, tmp_path: Path, num_past: int) -> None:
    path = rewritten(tiny_onnx, tmp_path, SharedCache())
    with OrtCpuSession(path, tiny.config, name="shared", library=None) as session:
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
    with OrtCpuSession(path, tiny.config, name="half", library=None) as session:
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


@pytest.mark.parametrize("with_library", [True, False], ids=["operators", "functions"])
@pytest.mark.parametrize("bits", [8, 4])
def test_quantised_graphs_equal_torch_quantised_the_same_way(
    tiny: LoadedModel, tiny_onnx: Path, cpu_library: Path, tmp_path: Path, bits: int, with_library: bool
) -> None:
    gelu, packed = NativeGelu(andrea_gelu()), PackedLinears(dict.fromkeys(LINEARS, bits), widest=32)
    path = rewritten(tiny_onnx, tmp_path, gelu, SharedCache(), HalfCache(), packed, PackedEmbedding())
    reference = quantized_part(tiny.model, "", dict.fromkeys(LINEARS, f"int{bits}"), int4_block=32)
    with torch.inference_mode():
        same_way = reference(torch.tensor([IDS]))[0].numpy()
    exact = torch_logits(tiny, IDS)
    library = cpu_library if with_library else None
    with OrtCpuSession(path, tiny.config, name="quantised", library=library) as session:
        logits = session.run(step_feeds(IDS, 0, empty_cache(tiny)))["logits"]
    # Where both round the same way, they differ by activations that fall on the other side of a step: far less than
    # quantising itself costs. A wrong scale, layout or sign costs many times more.
    assert np.abs(logits - same_way).max() < 0.05 * np.abs(same_way - exact).max()
    graph = ir.load(path).graph
    forms = Counter(node.op_type for node in graph if node.domain == "com.andrea")
    assert forms == {
        "Embed8": 1, f"NormLinear{bits}": 2 + (bits == 8), f"NormLinear{bits}Gelu": 2, f"Linear{bits}Add": 4,
        **({"NormLinear8": 1} if bits == 4 else {}),
    }  # fmt: skip
    assert not any(node.op_type in ("LayerNormalization", "MatMul", "Gelu") for node in graph)
    kept = {
        f"blocks.{i}.{name}" for i in range(2) for name in ("attn.qkv", "attn_residual", "mlp.gelu", "mlp_residual")
    }
    assert kept <= {str(value.name) for node in graph for value in node.outputs}


@pytest.mark.parametrize("with_library", [True, False], ids=["operators", "functions"])
@pytest.mark.parametrize("bits", [8, 4])
def test_a_rows_error_is_a_share_of_its_own_size(
    cpu_library: Path, tmp_path: Path, bits: int, with_library: bool
) -> None:
    """Whatever rows are beside it: each is rounded on its own range."""
    generator = np.random.default_rng(0)
    sizes_M = np.array([1.0, 1e-3, 0.0, 30.0, 1e6], np.float32)
    rows_MK = generator.standard_normal((5, 64), np.float32) * sizes_M[:, None]
    weight_KN = generator.standard_normal((64, 32), np.float32)
    y_MN = packed_layer(weight_KN, rows_MK, bits, cpu_library if with_library else None, tmp_path)
    codes = channel_codes(weight_KN) if bits == 8 else block_codes(weight_KN, block_size=64)
    exact_MN = rows_MK.astype(np.float64) @ codes.weights()
    # Half a step of 1/8191 of the row's largest value, times the sum of the weights' magnitudes.
    bound_MN = np.abs(rows_MK).max(axis=1, keepdims=True) / 8191 / 2 * np.abs(codes.weights()).sum(axis=0)
    assert (np.abs(y_MN - exact_MN) <= bound_MN * 1.01 + 1e-30).all()


@pytest.mark.parametrize("with_library", [True, False], ids=["operators", "functions"])
@pytest.mark.parametrize(("bits", "widest"), [(8, 128), (4, 128), (4, 32)])
def test_layers_of_zeros_add_nothing(
    cpu_library: Path, tmp_path: Path, bits: int, widest: int, with_library: bool
) -> None:
    rows_MK = np.random.default_rng(0).standard_normal((5, 512), np.float32) * 30
    weight_KN = np.zeros((512, 40), np.float32)
    library = cpu_library if with_library else None
    assert not packed_layer(weight_KN, rows_MK, bits, library, tmp_path, widest=widest).any()


def packed_layer(
    weight_KN: np.ndarray, rows_MK: np.ndarray, bits: int, library: Path | None, folder: Path, *, widest: int = 128
) -> np.ndarray:
    model = one_layer(weight_KN, np.zeros(weight_KN.shape[1], np.float32))
    run_passes(model, PackedLinears({"fc": bits}, widest=widest))
    ir.save(model, folder / "layer.onnx")
    with OnnxSession(folder / "layer.onnx", tuning=SessionTuning(operators=library)) as session:
        return np.asarray(session.run({"x": rows_MK})["fc"])


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
    ([TiedHead(), PackedEmbedding()], "value 'logits' comes from FusedMatMul"),
    ([LogitsToKeep(), LogitsToKeep()], "already has the input logits_to_keep"),
    ([PackedLinears({"blocks.7.mlp.fc": 8}, widest=32)], "no linear layer blocks.7.mlp.fc"),
    ([PackedLinears(EIGHT, widest=32), PackedLinears(EIGHT, widest=32)], "no linear layer blocks.0.attn.qkv"),
    (
        [renamed("blocks.1.attn_residual", "other"), LogitsToKeep()],
        "no blocks.1.attn.context or no blocks.1.attn_resid",
    ),
    ([renamed("blocks.1.attn.proj", "other"), LogitsToKeep()], "blocks.1.attn_residual does not add one value"),
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
