"""Attention spelled out: the same numbers as the node, the same names, fp32 scores, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from andrea_export.core.dtypes import DTYPES
from andrea_export.core.errors import PassError
from andrea_export.core.names import MODULE_KEY
from andrea_export.core.precision import PRECISIONS
from andrea_export.graph.passes.extract_layers import AddTaps
from andrea_export.graph.passes.graph_edits import run_passes
from andrea_export.targets.tensorrt.passes.decompose_attention import DecomposeAttention
from andrea_export.targets.tensorrt.passes.mixed_precision import MixedPrecision
from andrea_model.config import PRESETS
from support.graphs import two_attentions

CONFIG = PRESETS["andrea-tiny"]


def _outputs(model: ir.Model, path: Path) -> list[np.ndarray]:  # type: ignore[type-arg]
    """Logits and contexts of a left-padded batch with a cache."""
    ir.save(model, path, external_data="weights.data")
    batch, sequence, past = 2, 5, 3
    generator = np.random.default_rng(0)
    mask = np.ones((batch, past + sequence), np.int64)
    mask[1, :4] = 0  # the second row is padding over all of its cache and one token more
    feeds = {
        "input_ids": generator.integers(0, CONFIG.vocab_size, (batch, sequence)),
        "attention_mask": mask,
        "position_ids": np.clip(mask.cumsum(1) - 1, 0, None)[:, past:],
    }
    for block in range(CONFIG.n_layer):
        for part in ("key", "value"):
            shape = (batch, CONFIG.n_head, past, CONFIG.d_head)
            feeds[f"past_key_values.{block}.{part}"] = generator.standard_normal(shape).astype(np.float32)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return list(session.run(["logits", "blocks.0.attn.context", "blocks.1.attn.context"], feeds))


def test_same_numbers_as_the_node(tiny_onnx: Path, tmp_path: Path) -> None:
    taps = AddTaps(["blocks.0.attn.context", "blocks.1.attn.context"])
    node, spelled_out = ir.load(tiny_onnx), ir.load(tiny_onnx)
    run_passes(node, taps)
    run_passes(spelled_out, DecomposeAttention(), taps)
    for wanted, got in zip(
        _outputs(node, tmp_path / "a.onnx"), _outputs(spelled_out, tmp_path / "b.onnx"), strict=True
    ):
        # Sums of at most mlp_dim = 256 products in another order: 256·u relative to the largest, u = 2^-24.
        bound = CONFIG.mlp_dim * DTYPES["fp32"].unit_roundoff * np.abs(wanted).max()
        assert np.abs(got - wanted).max() <= bound


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_names_types_and_validity(tiny_onnx: Path, tmp_path: Path, precision: str) -> None:
    model = ir.load(tiny_onnx)
    run_passes(model, MixedPrecision(PRECISIONS[precision]), DecomposeAttention())
    assert not [node for node in model.graph if node.op_type == "Attention"]
    values = {str(value.name): value for node in model.graph for value in node.outputs}
    for block in range(CONFIG.n_layer):
        name = f"blocks.{block}.attn.context/Attention"
        assert values[name].dtype == DTYPES[precision].onnx
        for inner in ("scores", "masked", "weights"):
            assert values[f"{name}/{inner}"].dtype == ir.DataType.FLOAT, inner
            assert values[f"{name}/{inner}"].producer().metadata_props[MODULE_KEY] == f"blocks.{block}.attn.context"
    path = tmp_path / "model.onnx"
    ir.save(model, path, external_data="weights.data")
    onnx.checker.check_model(path, full_check=True)


@pytest.mark.parametrize(
    ("attribute", "found"),
    [
        (ir.AttrInt64("is_causal", 1), "'is_causal': 1"),
        (ir.AttrFloat32("softcap", 30.0), "'softcap': 30.0"),
        (ir.AttrFloat32("scale", 1.0), "'scale': 1.0"),
        (ir.AttrInt64("softmax_precision", 1), "'softmax_precision': 1"),
    ],
)
def test_an_attention_that_means_more_is_refused(attribute: ir.Attr, found: str) -> None:
    model = two_attentions()
    list(model.graph)[1].attributes[attribute.name] = attribute
    with pytest.raises(PassError, match=r"blocks\.1\.attn\.context/Attention has") as caught:
        run_passes(model, DecomposeAttention())
    assert found in str(caught.value)


def test_an_unknown_head_width_is_refused() -> None:
    with pytest.raises(PassError, match=r"past_key_values\.0\.key has D = width"):
        run_passes(two_attentions("width"), DecomposeAttention())


def test_a_graph_without_attention_is_left_alone() -> None:
    model = two_attentions()
    run_passes(model, DecomposeAttention())
    assert not DecomposeAttention()(model).modified
