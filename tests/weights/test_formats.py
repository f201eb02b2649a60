"""The formats of nanoGPT, of llm.c and of the published ANDREA: read exactly, or refused in one line."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from andrea_export.core.errors import CheckpointError
from andrea_export.weights.load import LoadedModel, load_model
from andrea_export.weights.readers import Reading, open_checkpoint
from andrea_export.weights.shape import config_from_file
from support.foreign import gpt2_config, gpt2_state, same_weights, write_llmc, write_nanogpt, write_published
from support.variants import VARIANTS, variant_model
from tests.conftest import Andrea

PUBLISHED = VARIANTS["published"]
PER_BLOCK = ("attn.q", "attn.k", "attn.v", "attn.proj", "mlp.fc", "mlp.proj")
BUILT_IN = [
    "token_embed.weight",
    "position_embed.weight",
    "head.weight",
    *(f"blocks.{block}.{name}.weight" for block in range(PUBLISHED.n_layer) for name in PER_BLOCK),
]


def read(path: Path, **reading: Any) -> LoadedModel:
    return load_model(preset=None, checkpoint=path, seed=0, reading=Reading(**reading))


# --- nanoGPT ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapper", ["_orig_mod.", "module._orig_mod.", ""])
def test_nanogpt(trained: LoadedModel, tmp_path: Path, wrapper: str) -> None:
    loaded = read(write_nanogpt(tmp_path / "ckpt.pt", trained.model, wrapper=wrapper))
    assert loaded.config == trained.config
    same_weights(loaded.model, trained.model)
    assert "A GUESS: its GELU is taken to be the tanh form" in str(loaded.origin)


@pytest.mark.parametrize("name", ["no-biases", "own-head"])
def test_nanogpt_without_biases_and_with_an_own_head(tmp_path: Path, name: str) -> None:
    config = replace(VARIANTS[name], mlp_dim=4 * VARIANTS[name].d_model)
    model = variant_model(config)
    loaded = read(write_nanogpt(tmp_path / "ckpt.pt", model))
    assert loaded.config == config
    same_weights(loaded.model, model)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"n_layer": 5}, "missing transformer.h.4.ln_1.weight"),
        ({"vocab_size": 300}, "transformer.wte.weight has shape"),
        ({"n_head": 3}, "model_args is not a configuration: d_model 128 is not a multiple"),
        ({"n_embd": None}, "model_args is not a configuration"),
    ],
)
def test_nanogpt_arguments_that_are_not_of_its_weights(
    trained: LoadedModel, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    content = torch.load(write_nanogpt(tmp_path / "ckpt.pt", trained.model), weights_only=True)
    content["model_args"].update(change)
    torch.save(content, tmp_path / "ckpt.pt")
    with pytest.raises(CheckpointError, match=said) as caught:
        read(tmp_path / "ckpt.pt")
    assert "\n" not in str(caught.value)


def test_a_state_dict_needs_its_shape(trained: LoadedModel, tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    torch.save({"state_dict": gpt2_state(trained.model, linear=True)}, path)
    with pytest.raises(CheckpointError, match=r"\(GPT-2's names\) does not state its shape") as caught:
        read(path)
    assert str(caught.value.hint).startswith("name it: --config FILE")
    same_weights(read(path, config=trained.config).model, trained.model)


@pytest.mark.parametrize("content", [b"PK\x03\x04 not a zip file", b"PK\x03\x04" + bytes(400)])
def test_a_damaged_pickle(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"is not a whole file of torch\.save"):
        read(tmp_path / "x.pt")


# --- llm.c ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [257, 384])
def test_llmc(trained: LoadedModel, tmp_path: Path, dtype: torch.dtype, num_rows: int) -> None:
    loaded = read(write_llmc(tmp_path / "gpt2.bin", trained.model, dtype=dtype, num_rows=num_rows))
    assert loaded.config == trained.config
    for (name, parameter), wanted in zip(loaded.model.named_parameters(), trained.model.parameters(), strict=True):
        assert torch.equal(parameter, wanted.to(dtype).float()), name


Damage = Callable[[bytes], bytes]


def header(at: int, value: int) -> Damage:
    return lambda content: content[: 4 * at] + struct.pack("<i", value) + content[4 * at + 4 :]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (header(1, 1), "magic 20240326 and version 1, expected 20240326 and 3"),
        (header(2, 512), r"and its header states \d"),
        (header(7, 100), "padded_vocab_size 100 is less than vocab_size 257"),
        (header(4, -1), "states an impossible shape: n_layer is -1"),
        (lambda content: content[:-4], "bytes, and its header states"),
        (lambda content: content + bytes(4), "bytes, and its header states"),
        (lambda content: content[:500], "has 500 bytes, fewer than llm.c's header"),
    ],
)
def test_a_damaged_llmc_file(trained: LoadedModel, tmp_path: Path, damage: Damage, said: str) -> None:
    path = write_llmc(tmp_path / "gpt2.bin", trained.model)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match=said):
        read(path)


# --- the published checkpoint -----------------------------------------------------------------------------------------


@pytest.fixture
def published(tmp_path: Path) -> tuple[Path, Any]:
    model = variant_model(PUBLISHED)
    return write_published(tmp_path / "andrea.bin", model, names=BUILT_IN), model


def test_the_published_order_is_a_guess(published: tuple[Path, Any]) -> None:
    path, model = published
    loaded = read(path, config=PUBLISHED)
    same_weights(loaded.model, model)
    assert "A GUESS: the order of its tensors is assumed" in str(loaded.origin)
    assert open_checkpoint(path, Reading(config=PUBLISHED)).notes[0].startswith("A GUESS")


def test_a_layout_file_is_no_guess(published: tuple[Path, Any], tmp_path: Path) -> None:
    _, model = published
    names = [*BUILT_IN[3:], *BUILT_IN[:3]]
    other = write_published(tmp_path / "other.bin", model, names=names)
    layout = tmp_path / "layout.toml"
    c, f = PUBLISHED.d_model, PUBLISHED.mlp_dim
    shapes = {"mlp.fc": [f, c], "mlp.proj": [c, f]}
    lines = [{"name": f"blocks.N.{name}.weight", "shape": shapes.get(name, ["C", "C"])} for name in PER_BLOCK]
    lines += [{"name": name, "shape": ["T" if "position" in name else "V", "C"]} for name in BUILT_IN[:3]]
    tensors = ", ".join(f'{{name = "{one["name"]}", shape = {json.dumps(one["shape"])}}}' for one in lines)
    model_table = "\n".join(f"{key} = {json.dumps(value)}" for key, value in asdict(PUBLISHED).items())
    layout.write_text(f'orientation = "out-in"\ntensors = [{tensors}]\n[model]\n{model_table}\n')
    loaded = read(other, layout=layout)
    same_weights(loaded.model, model)
    assert "GUESS" not in str(loaded.origin)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "orientation is null, expected in-out or out-in"),
        ('orientation = "out-in"', "it names no tensors"),
        ('orientation = "out-in"\ntensors = [1]', "a tensor is 1, expected a name and a shape"),
        ('orientation = "out-in"\ntensors = [{name = "a", shape = ["Z"]}]', 'a has .* "Z", expected a number'),
        ('orientation = "out-in"\ntensors = [{name = "a", shape = [2]}]', "and its layout comes to 2 in 2 blocks"),
        ('colour = "red"', "unknown key 'colour'"),
        ("=", "layout"),
    ],
)
def test_a_layout_that_is_wrong(published: tuple[Path, Any], tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "layout.toml").write_text(text)
    with pytest.raises(CheckpointError, match=said) as caught:
        read(published[0], config=PUBLISHED, layout=tmp_path / "layout.toml")
    assert "\n" not in str(caught.value)


def test_adams_moments_are_not_read(published: tuple[Path, Any]) -> None:
    """They are NaN here; the hash is that of what was read."""
    path, _ = published
    before = read(path, config=PUBLISHED)
    with path.open("r+b") as file:
        file.seek(-8, 2)
        file.write(bytes(8))
    assert read(path, config=PUBLISHED).origin.checkpoint_sha256 == before.origin.checkpoint_sha256


def test_the_count_of_the_published_120m_is_recognised() -> None:
    from andrea_export.weights.readers.published import preset_of_count

    config = preset_of_count(98_698_752)
    assert config is not None
    assert (config.n_layer, config.vocab_size, config.variant) == (12, 8449, PUBLISHED.variant)


# --- the shape in a file ----------------------------------------------------------------------------------------------


def test_a_shape_in_a_file(trained: LoadedModel, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(asdict(trained.config)))
    (tmp_path / "b.json").write_text(json.dumps(gpt2_config(trained.config)))
    values = "\n".join(f"{key} = {json.dumps(value)}" for key, value in asdict(trained.config).items())
    (tmp_path / "c.toml").write_text(values)
    (tmp_path / "d.toml").write_text(f"[model]\n{values}")
    assert {config_from_file(file) for file in tmp_path.iterdir()} == {trained.config}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "it has no d_model; it has no n_head"),
        ('{"colour": 1}', "unknown key 'colour'"),
        ("[1]", "configuration"),
        ('{"model_type": "llama"}', "another architecture"),
    ],
)
def test_a_file_that_states_no_shape(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(CheckpointError, match=said):
        config_from_file(tmp_path / "x")


def test_a_shape_by_option_and_by_recipe(andrea: Andrea, trained: LoadedModel, tmp_path: Path) -> None:
    torch.save(gpt2_state(trained.model, linear=True), tmp_path / "state.pt")
    (tmp_path / "shape.json").write_text(json.dumps(asdict(trained.config)))
    values = "\n".join(f"{key} = {json.dumps(value)}" for key, value in asdict(trained.config).items())
    (tmp_path / "recipe.toml").write_text(f'targets = ["onnx"]\n[model]\n{values}\n')
    cache = ("--cache-dir", tmp_path / "cache", "--checkpoint", tmp_path / "state.pt")
    built = andrea("build", tmp_path / "one", *cache, "--target", "onnx", "--config", tmp_path / "shape.json")
    assert built.code == 0, built.stderr
    assert andrea("build", tmp_path / "two", *cache, "--recipe", tmp_path / "recipe.toml").code == 0
    (tmp_path / "recipe.toml").write_text(f'preset = "andrea-tiny"\n[model]\n{values}\n')
    refused = andrea("build", tmp_path / "three", *cache, "--recipe", tmp_path / "recipe.toml")
    assert (refused.code, "preset and model both give the shape" in refused.error) == (2, True)
    (tmp_path / "recipe.toml").write_text("[model]\nn_heads = 3\n")
    refused = andrea("build", tmp_path / "three", *cache, "--recipe", tmp_path / "recipe.toml")
    assert "unknown key 'n_heads'" in refused.error
