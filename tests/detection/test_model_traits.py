"""The traits of trained models that tests are given: outlier channels and near-ties, without another function."""

from __future__ import annotations

import hashlib
import math

import pytest
import torch

from andrea_export.weights.load import load_model
from andrea_model.model import Andrea
from support.model_traits import NUM_OUTLIERS, with_near_ties, with_outlier_channels
from support.paths import FIXTURES


@pytest.fixture(scope="module")
def austen() -> Andrea:
    return load_model(preset=None, checkpoint=FIXTURES / "austen.safetensors", seed=0).model


@pytest.fixture(scope="module")
def held_out() -> torch.Tensor:
    text = (FIXTURES / "austen_held_out.txt").read_bytes()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def perplexity(model: Andrea, tokens: torch.Tensor) -> float:
    with torch.inference_mode():
        logits = model(tokens[None, :-1])[0][0]
    return float(torch.nn.functional.cross_entropy(logits.double(), tokens[1:]).exp())


def test_the_fixture_has_learned_english(austen: Andrea, held_out: torch.Tensor) -> None:
    """257 is chance; the log says 8.53 over the whole text."""
    windows = held_out.view(-1, 128)
    loss = sum(math.log(perplexity(austen, window)) for window in windows) / len(windows)
    assert math.exp(loss) == pytest.approx(8.526, rel=1e-3)


def test_the_log_is_that_of_the_file(austen: Andrea) -> None:
    log = (FIXTURES / "austen.log").read_text()
    digest = hashlib.sha256((FIXTURES / "austen.safetensors").read_bytes()).hexdigest()
    assert digest in log and "held out, windows of 128" in log
    assert f"{sum(parameter.numel() for parameter in austen.parameters()):,} parameters" in log


def test_outlier_channels_dwarf_the_others_and_leave_the_function(austen: Andrea, held_out: torch.Tensor) -> None:
    changed = with_outlier_channels(austen)
    seen: dict[str, torch.Tensor] = {}

    def record(name: str, module: torch.nn.Module) -> None:
        module.register_forward_hook(lambda _m, _i, output: seen.__setitem__(name, output))

    record("plain", austen.blocks[2].ln_1)
    record("outliers", changed.blocks[2].ln_1)
    with torch.inference_mode():
        before, after = (model(held_out[None, :64])[0] for model in (austen, changed))
    assert torch.allclose(before, after, atol=2e-3)
    assert not torch.equal(before, after)
    ratio = seen["outliers"].abs().amax(dim=(0, 1)) / seen["plain"].abs().amax(dim=(0, 1))
    assert int((ratio > 25).sum()) == NUM_OUTLIERS


def test_near_ties_leave_top_1_to_rounding(austen: Andrea, held_out: torch.Tensor) -> None:
    changed = with_near_ties(austen, num_pairs=128)
    with torch.inference_mode():
        top = changed(held_out[None, :256])[0][0].topk(2).values
        plain = austen(held_out[None, :256])[0][0].topk(2).values
    assert float((top[:, 0] - top[:, 1]).median()) < 1e-4 < float((plain[:, 0] - plain[:, 1]).median())


def test_the_original_is_left_as_it_was(austen: Andrea) -> None:
    before = {name: parameter.clone() for name, parameter in austen.named_parameters()}
    with_outlier_channels(austen)
    with_near_ties(austen)
    assert all(torch.equal(before[name], parameter) for name, parameter in austen.named_parameters())
