"""Folders of Hugging Face's GPT-2: read exactly, whichever way they are stored, or refused in one line."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from andrea_export.core.errors import CheckpointError
from andrea_export.weights.load import LoadedModel, load_model
from support.foreign import gpt2_config, gpt2_state, same_weights, write_gpt2
from support.variants import VARIANTS, variant_model
from tests.conftest import Andrea


def read(folder: Path) -> LoadedModel:
    return load_model(preset=None, checkpoint=folder, seed=0)


def write_bin(folder: Path, state: dict[str, Any], config: dict[str, Any], **how: Any) -> Path:
    folder.mkdir()
    torch.save(state, folder / "pytorch_model.bin", **how)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize("num_shards", [1, 3])
def test_safetensors(trained: LoadedModel, tmp_path: Path, num_shards: int) -> None:
    loaded = read(write_gpt2(tmp_path / "gpt2", trained.model, num_shards=num_shards))
    same_weights(loaded.model, trained.model)
    assert loaded.config == trained.config
    assert (loaded.origin.checkpoint, loaded.origin.preset, loaded.origin.trained) == ("gpt2", None, True)


@pytest.mark.parametrize("zipped", [True, False])  # before torch 1.6 it was not
@pytest.mark.parametrize("prefix", ["transformer.", ""])
def test_pytorch_bin_with_buffers_and_the_tied_head(
    trained: LoadedModel, tmp_path: Path, prefix: str, zipped: bool
) -> None:
    state = gpt2_state(trained.model, prefix)
    state["lm_head.weight"] = state[f"{prefix}wte.weight"]  # one storage, two names, as transformers saves it
    state[f"{prefix}h.0.attn.bias"] = torch.ones(1, 1, 8, 8, dtype=torch.bool)
    state[f"{prefix}h.0.attn.masked_bias"] = torch.tensor(-1e4)
    config = gpt2_config(trained.config)
    folder = write_bin(tmp_path / "gpt2", state, config, _use_new_zipfile_serialization=zipped)
    same_weights(read(folder).model, trained.model)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_float_type(trained: LoadedModel, tmp_path: Path, dtype: torch.dtype) -> None:
    state = {name: tensor.to(dtype) for name, tensor in gpt2_state(trained.model).items()}
    loaded = read(write_bin(tmp_path / "gpt2", state, gpt2_config(trained.config)))
    for (name, parameter), wanted in zip(loaded.model.named_parameters(), trained.model.parameters(), strict=True):
        assert torch.equal(parameter, wanted.to(dtype).float()), name


def test_linear_matrices_under_its_names_are_told_by_their_shapes(trained: LoadedModel, tmp_path: Path) -> None:
    state = gpt2_state(trained.model, linear=True)
    same_weights(read(write_bin(tmp_path / "gpt2", state, gpt2_config(trained.config))).model, trained.model)


def test_a_folder_is_built_run_compared_and_inspected(andrea: Andrea, trained: LoadedModel, tmp_path: Path) -> None:
    folder = write_gpt2(tmp_path / "gpt2", trained.model)
    built = andrea("build", tmp_path / "out", "--checkpoint", folder, "--target", "onnx", "--cache-dir", tmp_path)
    assert built.code == 0, built.stderr
    assert andrea("run", tmp_path / "out", "--tokens", "72,101", "--max-new-tokens", 4).code == 0
    assert andrea("diff", folder, tmp_path / "out", "--no-language-model").code == 0
    seen = json.loads(andrea("inspect", folder, "--json").stdout)
    assert (seen["family"], seen["config"]["vocab_size"]) == ("Hugging Face GPT-2", 257)
    assert seen["made_by"]["matrices"] == "[in, out]"


Damage = Callable[[Path], None]


def says(**change: Any) -> Damage:
    def damage(folder: Path) -> None:
        facts = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**facts, **change}))

    return damage


def index_says(change: Callable[[dict[str, str]], None]) -> Damage:
    def damage(folder: Path) -> None:
        file = folder / "model.safetensors.index.json"
        content = json.loads(file.read_text())
        change(content["weight_map"])
        file.write_text(json.dumps(content))

    return damage


def a_tensor_twice(folder: Path) -> None:
    first, second = sorted(folder.glob("model-*.safetensors"))
    tensors = load_file(first)
    save_file({**load_file(second), next(iter(tensors)): next(iter(tensors.values()))}, second)


def key_twice(folder: Path) -> None:
    file = folder / "config.json"
    file.write_text('{"n_layer": 1, ' + file.read_text()[1:])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (says(activation_function="gelu"), "activation_function is 'gelu': the erf form of GELU, off by up to 4.73e-4"),
        (says(activation_function="relu"), "activation_function is 'relu': 0 below 0"),
        (says(model_type="llama"), r"model_type is 'llama', .* \(rotary positions, RMSNorm, a gated MLP\)"),
        (says(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx is true, expected false"),
        (says(vocab_size=300), r"transformer\.wte\.weight has shape \[257, 128\], expected \[300, 128\]"),
        (says(n_head=5), "is not a configuration: d_model 128 is not a multiple of n_head 5"),
        (says(n_layer=5), r"missing transformer\.h\.4\.ln_1\.weight"),
        (key_twice, "'n_layer' is in it twice"),
        (lambda folder: (folder / "config.json").write_text("[]"), "holds no JSON object"),
        (
            lambda folder: next(folder.glob("model-*")).unlink(),
            r"is not whole, 1 problem: missing model-0000\d-of-00002",
        ),
        (index_says(lambda at: at.update({next(iter(at)): "../x.safetensors"})), "names a file outside its folder"),
        (index_says(lambda at: at.pop(next(iter(at)))), "is not in the index"),
        (a_tensor_twice, "is in model-00002-of-00002.safetensors too"),
        (lambda folder: (folder / "model.safetensors.index.json").unlink(), "has no weights"),
    ],
)
def test_a_damaged_folder(trained: LoadedModel, tmp_path: Path, damage: Damage, said: str) -> None:
    folder = write_gpt2(tmp_path / "gpt2", trained.model, num_shards=2)
    damage(folder)
    with pytest.raises(CheckpointError, match=said) as caught:
        read(folder)
    assert "\n" not in str(caught.value)


class _Evil:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("/tmp/never-made-by-a-pickle"),))


def test_code_in_a_pickle_is_not_run(trained: LoadedModel, tmp_path: Path) -> None:
    folder = write_bin(tmp_path / "gpt2", {"wte.weight": _Evil()}, gpt2_config(trained.config))
    with pytest.raises(CheckpointError, match="code in it would not be run") as caught:
        read(folder)
    assert "\n" not in str(caught.value)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"wte.weight": 1}))
    with pytest.raises(CheckpointError):
        read(folder)
    assert not Path("/tmp/never-made-by-a-pickle").exists()


def test_a_head_that_is_not_the_embedding_is_refused_where_it_is_said_to_be(
    trained: LoadedModel, tmp_path: Path
) -> None:
    state = gpt2_state(trained.model)
    folder = write_bin(
        tmp_path / "gpt2", {**state, "lm_head.weight": state["transformer.wte.weight"] + 1}, gpt2_config(trained.config)
    )
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is not wte\.weight"):
        read(folder)


def test_weights_in_a_folder_are_named_by_the_folder(trained: LoadedModel, tmp_path: Path) -> None:
    folder = write_gpt2(tmp_path / "gpt2", trained.model)
    with pytest.raises(CheckpointError, match="is a part of a folder"):
        read(folder / "model.safetensors")


def test_a_head_of_its_own(tmp_path: Path) -> None:
    model = variant_model(VARIANTS["own-head"])
    folder = write_gpt2(tmp_path / "gpt2", model, tie_word_embeddings=False)
    assert read(folder).config == VARIANTS["own-head"]
    same_weights(read(folder).model, model)
