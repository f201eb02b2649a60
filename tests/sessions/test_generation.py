"""Greedy generation: each step equals a full forward pass; it stops where asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from andrea_export.core.errors import RunError, UsageError
from andrea_export.sessions.base import greedy, step_feeds
from andrea_export.sessions.onnxruntime import OnnxSession
from andrea_export.sessions.torch_reference import TorchSession
from andrea_export.weights.load import LoadedModel
from andrea_model import PRESETS
from support.scripted import ScriptedSession

TINY = PRESETS["andrea-tiny"]


def full_forward(loaded: LoadedModel, prompt: tuple[int, ...], number: int) -> list[int]:
    """Greedy without a cache: the whole sequence again for every token."""
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(number):
            logits, _ = loaded.model(torch.tensor([ids]))
            ids.append(int(logits[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("prompt", [(5,), (5, 17, 42), tuple(range(100, 140))])
def test_torch_with_a_cache_equals_full_forwards(tiny: LoadedModel, prompt: tuple[int, ...]) -> None:
    with TorchSession(tiny.model) as session:
        generated = list(greedy(session, TINY, prompt, 12))
    assert generated == full_forward(tiny, prompt, 12)


def test_onnxruntime_equals_full_forwards(tiny: LoadedModel, tiny_onnx: Path) -> None:
    with OnnxSession(tiny_onnx) as session:
        generated = list(greedy(session, TINY, (5, 17, 42), 50))
    assert generated == full_forward(tiny, (5, 17, 42), 50)
    assert len(set(generated)) > 3, "a model that says one token for ever compares nothing"


def test_the_context_can_be_filled_to_its_last_position(tiny: LoadedModel, tiny_onnx: Path) -> None:
    prompt = tuple(index % 321 for index in range(1021))
    with OnnxSession(tiny_onnx) as session:
        generated = list(greedy(session, TINY, prompt, 3))
    assert generated == full_forward(tiny, prompt, 3)


def test_of_equal_logits_the_lowest_id_wins() -> None:
    session = ScriptedSession(TINY, [0.0, 2.0, 2.0], [1.0, 1.0, 1.0])
    assert list(greedy(session, TINY, (7,), 2)) == [1, 0]


def test_each_step_is_fed_only_what_is_new() -> None:
    session = ScriptedSession(TINY, [0.0, 1.0], [1.0, 0.0], [0.0, 1.0])
    list(greedy(session, TINY, (7, 8, 9), 3))
    assert [feeds["input_ids"].tolist() for feeds in session.fed] == [[[7, 8, 9]], [[1]], [[0]]]
    assert [feeds["position_ids"].tolist() for feeds in session.fed] == [[[0, 1, 2]], [[3]], [[4]]]
    assert [feeds["attention_mask"].shape[1] for feeds in session.fed] == [3, 4, 5]
    assert [feeds["past_key_values.1.value"].shape[2] for feeds in session.fed] == [0, 3, 4]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_are_not_finite_are_an_error(bad: float) -> None:
    session = ScriptedSession(TINY, [0.0, 1.0, 0.0], [0.0, bad, 1.0])
    with pytest.raises(RunError, match="scripted: 1 of 3 logits at position 1 are NaN or Inf"):
        list(greedy(session, TINY, (7,), 2))


def test_what_cannot_be_generated_is_refused_before_anything_runs() -> None:
    for prompt, number, text in (((), 1, "the prompt is empty"), ((999,), 0, "outside the vocabulary.*; 0 new tokens")):
        with pytest.raises(UsageError, match=text):
            next(greedy(ScriptedSession(TINY), TINY, prompt, number))


def test_a_steps_feeds() -> None:
    feeds = step_feeds([4, 5], 3, {"past_key_values.0.key": np.zeros((1, 4, 3, 16), np.float32)})
    assert feeds["input_ids"].tolist() == [[4, 5]]
    assert feeds["attention_mask"].tolist() == [[1, 1, 1, 1, 1]]
    assert feeds["position_ids"].tolist() == [[3, 4]]
    assert all(feeds[name].dtype == np.int64 for name in ("input_ids", "attention_mask", "position_ids"))
