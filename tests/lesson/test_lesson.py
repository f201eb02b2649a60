"""The lesson: its steps follow from one another by the lesson's formulas, on every backend."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from andrea_export.core.errors import RunError, UsageError
from andrea_export.lesson.backends import model_with_attention_weights
from andrea_export.lesson.formulas import attention_weights_name, lesson_layers
from andrea_export.lesson.lesson import (
    BackendLayers,
    Lesson,
    checked_position,
    lesson_from_layers,
    run_layers,
)
from andrea_export.sessions.onnxruntime import OnnxSession
from andrea_export.sessions.torch_reference import TorchSession
from andrea_export.weights.load import LoadedModel
from andrea_model import PRESETS

TINY = PRESETS["andrea-tiny"]
TOKENS = (5, 17, 42, 300)
STEPS = (
    "residual stream in",
    "LayerNorm",
    "q",
    "k",
    "v",
    "attention weights",
    "heads' context",
    "attention delta",
    "residual add",
    "LayerNorm",
    "W_1",
    "GELU",
    "W_2 (MLP delta)",
    "residual add",
)


@pytest.fixture(params=[0, 1])
def block(request: pytest.FixtureRequest) -> int:
    """Each block: the first takes the embedding, the second what the first gave."""
    return int(request.param)


@pytest.fixture
def torch_run(tiny: LoadedModel, block: int) -> BackendLayers:
    """What torch gives for the lesson on one block."""
    with TorchSession(tiny.model, layers=lesson_layers(block)) as session:
        return run_layers(session, TINY, TOKENS)


@pytest.fixture
def onnx_run(tiny_onnx: Path, block: int, tmp_path: Path) -> BackendLayers:
    """The same from onnxruntime, attention weights from the node itself."""
    model = model_with_attention_weights(tiny_onnx, block, tmp_path)
    with OnnxSession(model, "cpu", taps=(*lesson_layers(block), attention_weights_name(block))) as session:
        return run_layers(session, TINY, TOKENS)


def taught(*runs: BackendLayers, block: int, position: int = 3) -> Lesson:
    return lesson_from_layers(runs, TINY, weights="test", tokens=TOKENS, position=position, block=block)


def test_the_steps_are_the_lessons(torch_run: BackendLayers, block: int) -> None:
    lesson = taught(torch_run, block=block)
    assert tuple(step.name for step in lesson.steps) == STEPS
    shapes = [step.shape for step in lesson.steps]
    assert shapes == [(64,), (64,), *3 * [(4, 16)], (4, 4), (64,), (64,), (64,), (64,), (256,), (256,), (64,), (64,)]


def test_the_backends_agree(torch_run: BackendLayers, onnx_run: BackendLayers, block: int) -> None:
    """Within 64 roundings of fp32 at the size of the values: two summation orders over at most 256 products."""
    lesson = taught(torch_run, onnx_run, block=block)
    assert lesson.attention_weights_from == {
        torch_run.name: "computed from q and k",
        onnx_run.name: "node output",
    }
    for step in lesson.steps:
        reference, candidate = (step.observations[name] for name in lesson.backends)
        assert reference.max_abs_difference is None
        assert candidate.max_abs_difference is not None
        size = max(abs(reference.statistics.min), abs(reference.statistics.max), 1.0)
        assert candidate.max_abs_difference <= 64 * 2.0**-24 * size, step.name


@pytest.mark.parametrize("position", [0, 2, 3])
def test_attention_weights_are_over_the_visible_keys(
    torch_run: BackendLayers, onnx_run: BackendLayers, block: int, position: int
) -> None:
    lesson = taught(torch_run, onnx_run, block=block, position=position)
    weights = next(step for step in lesson.steps if step.name == "attention weights")
    assert weights.shape == (TINY.n_head, position + 1)
    for seen in weights.observations.values():
        # Each head's weights add up to 1, so their mean is 1/keys; 8 roundings of fp32 for the sum.
        assert seen.statistics.mean == pytest.approx(1 / (position + 1), abs=8 * 2.0**-24)
        assert seen.statistics.min >= 0.0


def test_the_first_token_sees_itself_alone(torch_run: BackendLayers, block: int) -> None:
    lesson = taught(torch_run, block=block, position=0)
    statistics = next(step for step in lesson.steps if step.name == "attention weights").observations["torch-fp32"]
    assert (statistics.statistics.min, statistics.statistics.max, statistics.statistics.std) == (1.0, 1.0, 0.0)


def test_statistics_are_of_the_tokens_own_values(torch_run: BackendLayers, block: int) -> None:
    lesson = taught(torch_run, block=block, position=2)
    value = torch_run.layers[f"blocks.{block}.mlp.gelu"][0, 2].astype(np.float64)
    statistics = next(step for step in lesson.steps if step.name == "GELU").observations["torch-fp32"].statistics
    assert statistics.mean == value.mean()
    assert statistics.std == value.std()
    assert (statistics.min, statistics.max) == (value.min(), value.max())
    assert statistics.l2 == pytest.approx(math.sqrt((value**2).sum()), rel=1e-15)


def test_the_adds_add_up(torch_run: BackendLayers, block: int) -> None:
    layers = torch_run.layers
    stream, delta = layers[lesson_layers(block)[0]], layers[f"blocks.{block}.attn.proj"]
    assert np.array_equal(stream + delta, layers[f"blocks.{block}.attn_residual"])
    assert np.array_equal(
        layers[f"blocks.{block}.attn_residual"] + layers[f"blocks.{block}.mlp.proj"],
        layers[f"blocks.{block}.mlp_residual"],
    )


def test_an_engine_shows_what_it_still_has(torch_run: BackendLayers, tiny: LoadedModel, block: int) -> None:
    """An engine's outputs are logits, keys and values: the other steps have no observation, and are not invented."""
    with TorchSession(tiny.model) as session:
        outputs = run_layers(session, TINY, TOKENS)
    engine = BackendLayers(name="tensorrt-rtx-fp32", layers=outputs.layers)
    lesson = taught(torch_run, engine, block=block)
    seen = [step.name for step in lesson.steps if "tensorrt-rtx-fp32" in step.observations]
    assert seen == ["k", "v"]
    for step in lesson.steps[3:5]:
        assert step.observations["tensorrt-rtx-fp32"].max_abs_difference == 0.0
    assert "tensorrt-rtx-fp32" not in lesson.attention_weights_from


def test_a_planted_difference_is_in_its_step(torch_run: BackendLayers, block: int) -> None:
    changed = dict(torch_run.layers)
    changed[f"blocks.{block}.mlp.fc"] = changed[f"blocks.{block}.mlp.fc"].copy()
    changed[f"blocks.{block}.mlp.fc"][0, 3, 7] += 0.5
    lesson = taught(torch_run, BackendLayers(name="other", layers=changed), block=block)
    differing = {step.name: step.observations["other"].max_abs_difference for step in lesson.steps}
    assert differing["W_1"] == pytest.approx(0.5, rel=1e-6)  # one fp32 rounding of the sum
    assert differing["GELU"] == 0.0


def test_nothing_to_show_is_an_error(block: int) -> None:
    with pytest.raises(RunError, match=f"none of a shows a step of block {block}"):
        taught(BackendLayers(name="a", layers={}), block=block)


def test_a_graph_without_the_node_is_an_error(tiny_onnx: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"has 0 Attention nodes in blocks\.7\.attn, expected 1"):
        model_with_attention_weights(tiny_onnx, 7, tmp_path)


def test_json_has_every_figure(torch_run: BackendLayers, block: int) -> None:
    document = asdict(taught(torch_run, block=block))
    assert [step["name"] for step in document["steps"]] == list(STEPS)
    assert set(document["steps"][0]["observations"]["torch-fp32"]["statistics"]) == {"mean", "std", "min", "max", "l2"}


def test_the_last_token_is_the_default() -> None:
    assert checked_position(TINY, tokens=TOKENS, position=None, block=0) == 3
    assert checked_position(TINY, tokens=TOKENS, position=1, block=1) == 1


@pytest.mark.parametrize(
    ("tokens", "position", "block", "text"),
    [
        ((), None, 0, "no tokens given"),
        ((1, 321), None, 0, "token id 321 is outside"),
        ((1,) * 1025, None, 0, "1025 tokens are more than the model's 1024 positions"),
        ((1, 2), 2, 0, "position 2 does not exist, expected 0 to 1"),
        ((1, 2), -1, 0, "position -1 does not exist"),
        ((1, 2), 0, 2, "block 2 does not exist, expected 0 to 1"),
        ((-5,), 4, 9, "token id -5.*; position 4.*; block 9"),
    ],
)
def test_what_cannot_be_taught(tokens: tuple[int, ...], position: int | None, block: int, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        checked_position(TINY, tokens=tokens, position=position, block=block)


def test_the_reference_is_left_as_it_was(tiny: LoadedModel, block: int) -> None:
    before = torch.cat([parameter.flatten() for parameter in tiny.model.parameters()]).clone()
    with TorchSession(tiny.model, layers=lesson_layers(block)) as session:
        run_layers(session, TINY, TOKENS)
    assert torch.equal(torch.cat([parameter.flatten() for parameter in tiny.model.parameters()]), before)
    assert not any(module._forward_hooks for module in tiny.model.modules())
