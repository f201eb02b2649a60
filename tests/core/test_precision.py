"""The rule of mixed precision: which types the rows name, and that activations of 300 survive fp16 under it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from andrea_export.core.dtypes import DTYPES
from andrea_export.core.names import BLOCK_LAYERS
from andrea_export.core.precision import (
    BUILT_PRECISIONS,
    ENGINE_PRECISIONS,
    JUDGED_PRECISIONS,
    ORT_PRECISIONS,
    PRECISIONS,
)
from andrea_export.graph.canonical.export import export_canonical
from andrea_export.graph.passes.extract_layers import AddTaps
from andrea_export.graph.passes.gelu_nodes import NativeGelu
from andrea_export.graph.passes.graph_edits import run_passes
from andrea_export.operators.sources import andrea_gelu
from andrea_export.sessions.base import zero_cache
from andrea_export.targets.tensorrt.passes.decompose_attention import DecomposeAttention
from andrea_export.targets.tensorrt.passes.mixed_precision import MixedPrecision
from andrea_export.weights.load import LoadedModel, load_model
from andrea_model.config import AndreaConfig

Arrays = dict[str, npt.NDArray[Any]]

NUM_TOKENS = 12


def test_every_precision_of_the_recipe_has_a_row() -> None:
    assert set(BUILT_PRECISIONS) <= set(PRECISIONS)
    assert all(row.name == name for name, row in PRECISIONS.items())
    assert all({row.compute_dtype, row.rest_dtype} <= set(DTYPES) for row in PRECISIONS.values())


def test_the_lists_of_precisions_are_those_of_the_table() -> None:
    assert ENGINE_PRECISIONS == ("fp32", "fp16", "bf16")
    assert ORT_PRECISIONS == ("fp32", "int8", "int4")
    assert BUILT_PRECISIONS == ("fp32", "fp16", "bf16", "int8", "int4")
    assert JUDGED_PRECISIONS == ("fp32", "fp16", "bf16", "tf32")


@pytest.mark.parametrize(
    ("module", "dtype"),
    [
        ("blocks.0.attn", "fp16"),
        ("blocks.11.attn.qkv", "fp16"),
        ("blocks.3.attn.context", "fp16"),
        ("blocks.3.mlp.gelu", "fp16"),
        ("blocks.3.mlp.proj", "fp16"),
        ("past_key_values.3.key", "fp16"),
        ("present.11.value", "fp16"),
        ("blocks.3.attn_residual", "fp32"),
        ("blocks.3.mlp_residual", "fp32"),
        ("blocks.3.ln_1", "fp32"),
        ("blocks.3.ln_2", "fp32"),
        ("ln_f", "fp32"),
        ("head", "fp32"),
        ("logits", "fp32"),
        ("token_embed", "fp32"),
        ("embed_residual", "fp32"),
        ("", "fp32"),
    ],
)
def test_types_of_modules(module: str, dtype: str) -> None:
    assert PRECISIONS["fp16"].module_dtype(module) == dtype
    assert PRECISIONS["fp32"].module_dtype(module) == "fp32"


# --- activations of 300 -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loud:
    """A tiny model whose residual stream, queries, keys and GELU inputs all pass 300; its file and its fp32 layers."""

    config: AndreaConfig
    path: Path
    layers: Arrays


@pytest.fixture(scope="module")
def loud(tmp_path_factory: pytest.TempPathFactory) -> Loud:
    loaded = load_model(preset="andrea-tiny", checkpoint=None, seed=3)
    config = loaded.config
    generator = torch.Generator().manual_seed(5)

    def normal(name: str, deviation: float) -> torch.Tensor:
        return loaded.model.get_parameter(name).normal_(0.0, deviation, generator=generator)

    # A LayerNorm's output has a standard deviation of 1, so a product with N(0, s²/d_model) weights has one of s.
    per_input = config.d_model**-0.5
    normal("token_embed.weight", 110.0)
    for block in range(config.n_layer):
        qkv = normal(f"blocks.{block}.attn.qkv.weight", 150.0 * per_input)
        d_model = config.d_model
        # Keys equal to queries: each token's score with itself is |q|²/sqrt(D), far beyond fp16, and far above the
        # rest.
        qkv[:, d_model : 2 * d_model] = qkv[:, :d_model]
        qkv[:, 2 * d_model :] *= 1 / 150.0
        normal(f"blocks.{block}.attn.proj.weight", per_input)
        normal(f"blocks.{block}.mlp.fc.weight", 110.0 * per_input)
        normal(f"blocks.{block}.mlp.proj.weight", config.mlp_dim**-0.5)
    folder = tmp_path_factory.mktemp("loud")
    return Loud(config=config, path=export_canonical(loaded, folder), layers=_torch_layers(loaded))


def _torch_layers(loaded: LoadedModel) -> Arrays:
    layers: Arrays = {}
    names = _layer_names(loaded.config)
    hooks = [
        loaded.model.get_submodule(name).register_forward_hook(
            lambda module, inputs, output, name=name: layers.__setitem__(name, output.numpy())
        )
        for name in names
    ]
    logits, _ = loaded.model(torch.arange(NUM_TOKENS).unsqueeze(0))
    for hook in hooks:
        hook.remove()
    return {**layers, "logits": logits.numpy()}


def _layer_names(config: AndreaConfig) -> list[str]:
    return [f"blocks.{block}.{layer}" for block in range(config.n_layer) for layer in BLOCK_LAYERS] + ["ln_f"]


def _feeds(config: AndreaConfig, cache: npt.DTypeLike) -> Arrays:
    ids = np.arange(NUM_TOKENS)[np.newaxis]
    return {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "position_ids": ids,
        **zero_cache(config, batch=1, past=0, dtype=np.dtype(cache)),
    }


def _tapped(loud: Loud, folder: Path, *passes: ir.passes.InPlacePass) -> Path:
    model = ir.load(loud.path)
    run_passes(model, *passes, AddTaps(_layer_names(loud.config)))
    path = folder / "model.onnx"
    ir.save(model, path, external_data="weights.data")
    return path


class AllHalf(ir.passes.InPlacePass):
    """What a naive converter does: every float becomes fp16."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        graph = model.graph
        for value in graph.initializers.values():
            if value.dtype == ir.DataType.FLOAT:
                assert value.const_value is not None
                value.const_value = ir.Tensor(value.const_value.numpy().astype(np.float16), name=value.name)
                value.dtype = ir.DataType.FLOAT16
        for value in [*graph.inputs, *(value for node in graph for value in node.outputs)]:
            if value.dtype == ir.DataType.FLOAT:
                value.dtype = ir.DataType.FLOAT16
        return ir.passes.PassResult(model, modified=True)


def _evaluate(path: Path, loud: Loud) -> Arrays:
    """Every layer as the ONNX reference implementation computes it, where a value of type fp16 is rounded to fp16."""
    names = ["logits", *_layer_names(loud.config)]
    with np.errstate(all="ignore"):
        values = ReferenceEvaluator(onnx.load(path)).run(names, _feeds(loud.config, np.float16))
    return dict(zip(names, values, strict=True))


def _relative_l2(candidate: npt.NDArray[Any], reference: npt.NDArray[Any]) -> float:
    difference = candidate.astype(np.float64) - reference.astype(np.float64)
    return float(np.linalg.norm(difference) / np.linalg.norm(reference.astype(np.float64)))


# One rounding to fp16 changes a tensor by at most u = 2^-11 in relative L2, and independent roundings add in
# quadrature. A block makes 13 on the way to its output: its input to each sublayer (2), four weights, qkv, softmax
# weights, context, attn.proj, fc, gelu, mlp.proj. No layer here amplifies them: softmax has one clear winner, the
# GELU is linear or flat almost everywhere, the residual adds.
ROUNDINGS_PER_BLOCK = 13


def _bound(config: AndreaConfig) -> float:
    return (config.n_layer * ROUNDINGS_PER_BLOCK) ** 0.5 * DTYPES["fp16"].unit_roundoff


def _rule(attention_node: bool) -> list[ir.passes.InPlacePass]:
    passes: list[ir.passes.InPlacePass] = [MixedPrecision(PRECISIONS["fp16"]), NativeGelu(andrea_gelu())]
    return passes if attention_node else [*passes, DecomposeAttention()]


def test_the_model_is_as_loud_as_claimed(loud: Loud) -> None:
    for layer in ("attn.qkv", "attn_residual", "mlp.fc", "mlp_residual"):
        for block in range(loud.config.n_layer):
            assert np.abs(loud.layers[f"blocks.{block}.{layer}"]).max() > 300
    queries = loud.layers["blocks.0.attn.qkv"][0, :, : loud.config.d_head]
    largest_score = (queries @ queries.T / np.sqrt(loud.config.d_head)).max()
    assert largest_score > np.finfo(np.float16).max


def test_fp16_rule_holds_at_300(loud: Loud, tmp_path: Path) -> None:
    layers = _evaluate(_tapped(loud, tmp_path, *_rule(attention_node=False)), loud)
    for name, values in layers.items():
        assert np.isfinite(values).all(), name
        assert _relative_l2(values, loud.layers[name]) <= _bound(loud.config), name
        assert values.dtype == DTYPES[PRECISIONS["fp16"].module_dtype(name)].numpy, name


def test_naive_fp16_does_not_survive_300(loud: Loud, tmp_path: Path) -> None:
    layers = _evaluate(_tapped(loud, tmp_path, NativeGelu(andrea_gelu()), AllHalf()), loud)
    # The squares overflow in the very first LayerNorm, whose result is then 0: finite, and nothing of the model is
    # left.
    for name in ("blocks.0.ln_1", "logits"):
        assert not _relative_l2(layers[name], loud.layers[name]) <= _bound(loud.config), name
        assert np.count_nonzero(layers[name]) == 0


def test_an_attention_node_of_fp16_does_not_survive_300(loud: Loud, tmp_path: Path) -> None:
    """Why fp16 spells attention out: by the operator's own definition the scores have the type of q and k."""
    layers = _evaluate(_tapped(loud, tmp_path, *_rule(attention_node=True)), loud)
    assert np.isnan(layers["blocks.0.attn.context"]).any()
    assert not PRECISIONS["fp16"].attention_node


def test_fp16_rule_holds_at_300_on_onnxruntime(loud: Loud, tmp_path: Path) -> None:
    path = _tapped(loud, tmp_path, *_rule(attention_node=False))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = ["logits", *_layer_names(loud.config)]
    for name, values in zip(names, session.run(names, _feeds(loud.config, np.float16)), strict=True):
        assert np.isfinite(values).all(), name
        assert _relative_l2(values, loud.layers[name]) <= _bound(loud.config), name


def test_bf16_has_no_kernels_in_onnxruntime(loud: Loud, tmp_path: Path) -> None:
    """What a report says of bf16 on the CPU rests on this; where it fails, onnxruntime has learnt it."""
    path = _tapped(loud, tmp_path, MixedPrecision(PRECISIONS["bf16"]), NativeGelu(andrea_gelu()))
    with pytest.raises(Exception, match=r"NOT_IMPLEMENTED.*MatMul"):
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
