"""The reference model against an oracle nobody here wrote: transformers' GPT-2 with the same weights.

The bound is 1e-5 in fp32. Where it comes from: logits of these models are below 4 in size, one fp32 rounding of such a
value is 2.4e-7, and a logit is a sum over d_model ≤ 768 products after n_layer ≤ 12 blocks, whose roundings add like a
random walk: sqrt(768) · 2.4e-7 = 6.6e-6. Any real difference is far above it (erf for tanh in one GELU: some 1e-4).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from andrea_export.weights.load import LoadedModel, load_model
from andrea_model import PRESETS, position_ids_from_mask
from andrea_model.model import Andrea, Gelu, build_model
from support.gpt2 import gpt2_from
from support.model_traits import with_outlier_channels

BOUND = 1e-5


def scaled(loaded: LoadedModel) -> Andrea:
    """The untrained model with biases and gains that matter: initialisation leaves them at 0 and 1."""
    generator = torch.Generator().manual_seed(7)
    for parameter in loaded.model.parameters():
        if parameter.ndim == 1:
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return loaded.model


MODELS = [
    "andrea-tiny",
    pytest.param("andrea-120m", marks=pytest.mark.full),
]


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest) -> tuple[Andrea, Any]:
    """(reference, GPT-2) with the same weights."""
    model = scaled(load_model(preset=request.param, checkpoint=None, seed=3))
    if request.param == "andrea-120m":
        model = with_outlier_channels(model)
    return model, gpt2_from(model)


def tokens(model: Andrea, batch: int, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(11)
    return torch.randint(model.config.vocab_size, (batch, length), generator=generator)


@torch.inference_mode()
def test_logits_equal_gpt2s(pair: tuple[Andrea, Any]) -> None:
    model, gpt2 = pair
    ids = tokens(model, 2, 96)
    logits, _ = model(ids)
    assert logits.abs().max() < 4.0  # what BOUND's derivation rests on
    assert (logits - gpt2(input_ids=ids).logits).abs().max() <= BOUND


@torch.inference_mode()
def test_a_full_context_equals_gpt2s(pair: tuple[Andrea, Any]) -> None:
    model, gpt2 = pair
    ids = tokens(model, 1, model.config.n_ctx)
    logits, _ = model(ids)
    assert (logits - gpt2(input_ids=ids).logits).abs().max() <= BOUND


# transformers 5 renames the argument to `cache`; 4 knows only this name, and the test runs with both.
@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
@torch.inference_mode()
def test_with_a_cache_step_by_step(pair: tuple[Andrea, Any]) -> None:
    model, gpt2 = pair
    ids = tokens(model, 2, 24)
    expected = gpt2(input_ids=ids).logits
    logits, past = model(ids[:, :16])
    steps = [logits]
    for index in range(16, 24):
        logits, past = model(ids[:, index : index + 1], past=past)
        steps.append(logits)
    assert (torch.cat(steps, dim=1) - expected).abs().max() <= BOUND
    cached = gpt2(input_ids=ids[:, :16], use_cache=True)
    continued = gpt2(input_ids=ids[:, 16:], past_key_values=cached.past_key_values).logits
    assert (torch.cat(steps[1:], dim=1) - continued).abs().max() <= BOUND


@torch.inference_mode()
def test_with_left_padding_each_row_equals_gpt2s_and_its_unpadded_run(pair: tuple[Andrea, Any]) -> None:
    model, gpt2 = pair
    ids = tokens(model, 3, 20)
    lengths = (20, 13, 1)
    mask = torch.tensor([[0] * (20 - length) + [1] * length for length in lengths])
    positions = position_ids_from_mask(mask, 20)
    logits, _ = model(ids, mask, positions)
    expected = gpt2(input_ids=ids, attention_mask=mask, position_ids=positions).logits
    assert torch.isfinite(logits).all()
    for row, length in enumerate(lengths):
        alone, _ = model(ids[row : row + 1, -length:])
        assert (logits[row, -length:] - expected[row, -length:]).abs().max() <= BOUND
        assert (logits[row, -length:] - alone[0]).abs().max() <= BOUND


@torch.inference_mode()
def test_the_bound_sees_the_other_gelu() -> None:
    """The same model with erf in one block: were BOUND too wide for that, it would prove nothing."""
    wide = scaled(load_model(preset="andrea-tiny", checkpoint=None, seed=3))
    for name, parameter in wide.named_parameters():
        if name.endswith("mlp.fc.weight"):
            parameter.mul_(8.0)
    oracle = gpt2_from(wide)
    ids = tokens(wide, 2, 96)
    assert (wide(ids)[0] - oracle(input_ids=ids).logits).abs().max() <= BOUND
    wide.blocks[0].mlp.gelu = torch.nn.GELU(approximate="none")  # type: ignore[union-attr]
    assert (wide(ids)[0] - oracle(input_ids=ids).logits).abs().max() > BOUND


def test_gelu_is_the_tanh_form() -> None:
    x = torch.tensor([0.0, 2.699, -2.699, 40.0, -40.0, -0.1], dtype=torch.float64)
    tanh = x * 0.5 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    value = Gelu()(x)
    assert torch.equal(value[[0, 3, 4]], torch.tensor([0.0, 40.0, 0.0], dtype=torch.float64).abs())
    assert value[5] < 0
    assert (value - tanh).abs().max() < 1e-15  # a few roundings of fp64
    erf = torch.nn.functional.gelu(x)
    assert 4.7e-4 < (value - erf).abs().max() < 4.8e-4  # 4.73e-4 at ±2.699: the two are different functions


@pytest.mark.parametrize("preset", PRESETS)
def test_parameter_count_is_the_arithmetics(preset: str) -> None:
    from andrea_export.inspection.facts import parameter_counts

    with torch.device("meta"):
        counted = sum(parameter.numel() for parameter in Andrea(PRESETS[preset]).parameters())
    assert counted == parameter_counts(PRESETS[preset]).exact


def test_the_seed_decides_the_weights_and_nothing_else_does() -> None:
    config = PRESETS["andrea-tiny"]
    before = torch.random.get_rng_state()
    one, same, other = (build_model(config, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(torch.random.get_rng_state(), before)
    for (name, parameter), twin in zip(one.named_parameters(), same.parameters(), strict=True):
        assert torch.equal(parameter, twin), name
    assert not torch.equal(one.token_embed.weight, other.token_embed.weight)


def test_initialisation_is_gpt2s() -> None:
    """Standard deviations 0.02, and 0.02/sqrt(2·n_layer) into the residual stream, to 5 standard errors."""
    model = build_model(PRESETS["andrea-tiny"], seed=0)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif ".ln_" in f".{name}":
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        else:
            wanted = 0.02 / 2.0 if name.endswith("proj.weight") else 0.02  # sqrt(2 · 2 blocks) = 2
            assert abs(parameter.std().item() / wanted - 1) < 5 / (2 * parameter.numel()) ** 0.5, name
