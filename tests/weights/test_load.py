"""Weights in: a checkpoint is taken whole and exactly, or refused with everything that is wrong with it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from andrea_export.core.errors import CheckpointError, UsageError
from andrea_export.core.names import CONFIG_KEY
from andrea_export.weights.load import LoadedModel, load_model, resolve_origin, save_checkpoint
from andrea_export.weights.origin import DEFAULT_PRESET, config_from_preset
from andrea_export.weights.readers import open_checkpoint
from andrea_model import PRESETS

TINY = PRESETS["andrea-tiny"]


def test_a_saved_model_loads_bit_for_bit(tmp_path: Path) -> None:
    model = load_model(preset="andrea-tiny", checkpoint=None, seed=4).model
    save_checkpoint(model, tmp_path / "a.safetensors")
    loaded = load_model(preset=None, checkpoint=tmp_path / "a.safetensors", seed=0)
    for (name, parameter), again in zip(model.named_parameters(), loaded.model.parameters(), strict=True):
        assert torch.equal(parameter, again), name
    assert loaded.config == TINY
    assert loaded.origin.preset == "andrea-tiny"
    assert loaded.origin.trained
    assert loaded.origin.seed is None
    assert loaded.origin.checkpoint == "a.safetensors"  # the name alone: no path of this machine
    assert loaded.origin.checkpoint_sha256 == hashlib.sha256((tmp_path / "a.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_are_widened_exactly(checkpoint: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(checkpoint).items()}
    path = tmp_path / "half.safetensors"
    save_file(tensors, path)
    model = load_model(preset="andrea-tiny", checkpoint=path, seed=0).model
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, tensors[name].float()), name


def test_without_a_checkpoint_the_weights_are_untrained_and_say_so() -> None:
    loaded = load_model(preset="andrea-tiny", checkpoint=None, seed=9)
    assert not loaded.origin.trained
    assert str(loaded.origin) == "untrained weights (GPT-2 initialisation, seed 9)"
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())


def test_the_origin_is_known_without_loading(checkpoint: Path) -> None:
    assert resolve_origin(preset=None, checkpoint=checkpoint, seed=0) == (
        TINY,
        load_model(preset=None, checkpoint=checkpoint, seed=0).origin,
    )
    config, origin = resolve_origin(preset=None, checkpoint=None, seed=3)
    assert config == PRESETS[DEFAULT_PRESET]
    assert (origin.preset, origin.seed) == (DEFAULT_PRESET, 3)


def test_a_shape_that_is_no_preset_comes_from_the_metadata(tmp_path: Path) -> None:
    from dataclasses import replace

    from andrea_model.model import build_model

    config = replace(TINY, n_layer=1, vocab_size=50)
    path = tmp_path / "odd.safetensors"
    save_checkpoint(build_model(config, seed=0), path)
    loaded = load_model(preset=None, checkpoint=path, seed=0)
    assert loaded.config == config
    assert loaded.origin.preset is None


@pytest.mark.parametrize(
    "metadata",
    [
        "not json",
        "[]",
        json.dumps({**asdict(TINY), "colour": "red"}),
        json.dumps({**asdict(TINY), "n_head": 5}),
        json.dumps({key: value for key, value in asdict(TINY).items() if key != "n_layer"}),
    ],
)
def test_metadata_that_is_no_configuration(checkpoint: Path, tmp_path: Path, metadata: str) -> None:
    path = tmp_path / "odd.safetensors"
    save_file(load_file(checkpoint), path, metadata={CONFIG_KEY: metadata})
    with pytest.raises(CheckpointError, match=r"metadata 'andrea\.config' is not a configuration"):
        load_model(preset=None, checkpoint=path, seed=0)


def test_every_problem_is_in_one_error(checkpoint: Path, tmp_path: Path) -> None:
    tensors = load_file(checkpoint)
    tensors["blocks.0.mlp.fc.weight"] = tensors["blocks.0.mlp.fc.weight"].T.contiguous()
    tensors["blocks.0.ln_1.bias"] = tensors["blocks.0.ln_1.bias"].to(torch.int32)
    del tensors["ln_f.weight"]
    tensors["head.weight"] = torch.zeros(2)
    path = tmp_path / "odd.safetensors"
    save_file(tensors, path)
    with pytest.raises(CheckpointError) as caught:
        load_model(preset="andrea-tiny", checkpoint=path, seed=0)
    for text in (
        "4 problems",
        "missing ln_f.weight [64]",
        "unexpected head.weight",
        "blocks.0.mlp.fc.weight has shape [256, 64], expected [64, 256]",
        "blocks.0.ln_1.bias has type I32, expected F32, F16, BF16 or F64",
    ):
        assert text in str(caught.value)


def test_a_very_long_list_is_cut_and_counted(checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "odd.safetensors"
    save_file({f"w{index}": torch.zeros(1) for index in range(100)}, path)
    with pytest.raises(CheckpointError, match=r"128 problems: .*; and 104 more$"):
        load_model(preset="andrea-tiny", checkpoint=path, seed=0)


def test_an_unknown_preset_names_those_there_are() -> None:
    with pytest.raises(UsageError, match="unknown preset 'andrea-7b'") as caught:
        config_from_preset("andrea-7b")
    assert caught.value.hint == "presets: andrea-tiny, andrea-12m, andrea-120m, andrea-480m"


def test_a_header_names_types_and_shapes_without_reading_weights(checkpoint: Path) -> None:
    opened = open_checkpoint(checkpoint)
    embedding = opened.tensors["token_embed.weight"]
    assert (embedding.dtype, embedding.shape) == ("F32", (321, 64))
    assert json.loads(opened.metadata[CONFIG_KEY]) == TINY.stated()


@pytest.mark.parametrize("cut", [1, 8, 100, 5000])
def test_a_header_of_a_truncated_file_is_refused(checkpoint: Path, tmp_path: Path, cut: int) -> None:
    path = tmp_path / "cut.safetensors"
    path.write_bytes(checkpoint.read_bytes()[:-cut])
    with pytest.raises(CheckpointError, match="is not a whole safetensors file"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    "change",
    [
        {"n_layer": 10**8},
        {"d_model": 10**9},
        {"d_model": 64.0},
        {"n_ctx": 10**30},
        {"layer_norm_epsilon": float("inf")},
    ],
)
def test_a_configuration_no_model_has_is_refused_before_memory_is_taken(
    tiny: LoadedModel, tmp_path: Path, change: dict[str, float]
) -> None:
    path = tmp_path / "odd.safetensors"
    tensors = {name: parameter.detach() for name, parameter in tiny.model.named_parameters()}
    config = {**asdict(tiny.config), **change}
    save_file(tensors, path, metadata={CONFIG_KEY: json.dumps(config)})
    with pytest.raises(CheckpointError, match=f"not a configuration: {next(iter(change))} is"):
        load_model(preset=None, checkpoint=path, seed=0)
