"""Variants of the architecture in the reference: which parameters each has, and what it computes."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch

from andrea_model.config import PRESETS, SWITCHES, AndreaConfig
from andrea_model.model import build_model, parameter_shapes
from support.gpt2 import gpt2_from
from support.small_model import CONFIG
from support.variants import VARIANTS, variant_model

BOUND = 1e-5  # as tests/model/test_reference.py derives it


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_those_of_gpt2_with_neutral_parameters_in_place_of_the_missing_ones(name: str) -> None:
    model = variant_model(VARIANTS[name])
    ids = torch.randint(model.config.vocab_size, (2, 40), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        ours, theirs = model(ids)[0], gpt2_from(model)(ids).logits
    assert (ours - theirs).abs().max() <= BOUND * ours.abs().max()


def test_a_variant_has_exactly_the_parameters_that_its_switches_say() -> None:
    whole = parameter_shapes(CONFIG)
    biases = {name for name in whole if name.endswith(".bias")}
    norms = {name for name in whole if "ln_" in name}
    assert parameter_shapes(VARIANTS["own-head"]) == {**whole, "head.weight": (260, 32)}
    assert set(whole) - set(parameter_shapes(VARIANTS["no-biases"])) == biases
    assert set(whole) - set(parameter_shapes(VARIANTS["plain-norms"])) == norms
    assert set(whole) - set(parameter_shapes(VARIANTS["published"])) == biases | norms


def test_a_head_of_its_own_is_initialised_apart_from_the_embedding() -> None:
    model = build_model(VARIANTS["own-head"], seed=0)
    tied = build_model(CONFIG, seed=0)
    assert model.head.weight is not None
    assert 0.015 < model.head.weight.std() < 0.025
    assert not torch.equal(model.head.weight, model.token_embed.weight)
    assert torch.equal(model.token_embed.weight, tied.token_embed.weight)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_the_lessons_variant_and_states_no_switch(preset: str) -> None:
    config = PRESETS[preset]
    assert config == config.of_the_lessons
    assert not set(SWITCHES) & set(config.stated())
    assert AndreaConfig(**config.stated()) == config


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_states_what_is_different_and_reads_it_back(name: str) -> None:
    config = VARIANTS[name]
    assert {key for key in SWITCHES if key in config.stated()} == {key for key in SWITCHES if not asdict(config)[key]}
    assert AndreaConfig(**config.stated()) == config


@pytest.mark.parametrize("value", [0, 1, "false", None])
@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_a_truth_value(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value!r}, expected true or false"):
        replace(CONFIG, **{name: value})
