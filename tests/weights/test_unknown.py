"""Names that nobody knows: one line says what they look like, and the command that reads them so reads them right."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from andrea_export.core.errors import CheckpointError
from andrea_export.weights.load import LoadedModel, load_model
from andrea_export.weights.readers import Reading
from andrea_model.config import AndreaConfig
from andrea_model.model import Andrea as Model
from support.foreign import MATRICES, same_weights
from support.variants import VARIANTS, variant_model
from tests.conftest import Andrea

STATES = dict[str, torch.Tensor]
SHORT = {
    "token_embed": "wte", "position_embed": "wpe", "attn.qkv": "aqkv", "attn.proj": "ap", "mlp.fc": "fc",
    "mlp.proj": "fp", "ln_1": "n1", "ln_2": "n2", "ln_f": "nf", "head": "lm_head",
}  # fmt: skip


def linear(model: Model) -> STATES:
    return {name: (p.T if name.endswith(MATRICES) else p).detach().contiguous() for name, p in model.named_parameters()}


def short_names(model: Model) -> STATES:
    """``blocks.0.ap.weight``, ``wte``, matrices ``[out, in]``: another training script's."""
    found = {}
    for name, tensor in linear(model).items():
        module, _, leaf = name.rpartition(".")
        block = re.match(r"blocks\.\d+\.", module)
        inner = module.removeprefix(block[0]) if block else module
        found[(block[0].replace("blocks", "layers") if block else "") + f"{SHORT[inner]}.{leaf}"] = tensor
    return {("wte" if name == "wte.weight" else name): tensor for name, tensor in found.items()}


def microgpt(model: Model) -> STATES:
    """``layer0.attn_wq``: q, k and v apart, no biases, no norms, a head of its own."""
    found = {}
    names = {"attn.proj": "attn_wo", "mlp.fc": "mlp_fc1", "mlp.proj": "mlp_fc2"}
    for name, tensor in linear(model).items():
        parts = name.split(".")
        if "qkv" in name:
            for part, matrix in zip("qkv", tensor.chunk(3, dim=0), strict=True):
                found[f"layer{parts[1]}.attn_w{part}"] = matrix.contiguous()
        elif parts[0] == "blocks":
            found[f"layer{parts[1]}.{names['.'.join(parts[2:4])]}"] = tensor
        else:
            found[SHORT[parts[0]]] = tensor
    return found


CASES: list[tuple[Callable[[Model], STATES], AndreaConfig, str]] = [
    (short_names, VARIANTS["own-head"].of_the_lessons, r"nanoGPT with matrices \[out, in\]: .*layers\.0\.ap\.weight"),
    (short_names, VARIANTS["no-biases"], "nanoGPT"),
    (short_names, VARIANTS["own-head"], "nanoGPT"),
    (microgpt, VARIANTS["published"], r"microgpt with matrices \[out, in\]: .*layer0\.attn_wo = blocks\.0\.attn\.proj"),
]


@pytest.mark.parametrize(("spelled", "config", "said"), CASES)
@pytest.mark.parametrize("pickled", [True, False])
def test_they_are_recognised(
    tmp_path: Path, spelled: Callable[[Model], STATES], config: AndreaConfig, said: str, pickled: bool
) -> None:
    model = variant_model(config)
    path = tmp_path / "other"
    (torch.save if pickled else save_file)(spelled(model), path)
    with pytest.raises(CheckpointError, match=f"no known family; by shapes and order it looks like {said}") as caught:
        load_model(preset=None, checkpoint=path, seed=0)
    assert f"andrea-export convert {path} DESTINATION --recognise --config FILE" in str(caught.value.hint)
    assert "\n" not in str(caught.value)
    loaded = load_model(preset=None, checkpoint=path, seed=0, reading=Reading(config=config, recognised=True))
    same_weights(loaded.model, model)
    assert "A GUESS: its names are of no known family" in str(loaded.origin)


def test_many_blocks_are_read_in_their_order(trained: LoadedModel, tmp_path: Path) -> None:
    """Ten comes after two, also where names are sorted as text."""
    config = replace(VARIANTS["no-biases"], n_layer=12)
    model = variant_model(config)
    save_file(short_names(model), tmp_path / "other")
    reading = Reading(config=config, recognised=True)
    same_weights(load_model(preset=None, checkpoint=tmp_path / "other", seed=0, reading=reading).model, model)


def test_a_copy_of_the_tied_matrix_is_no_head(tmp_path: Path) -> None:
    model = variant_model(VARIANTS["no-biases"])
    state = short_names(model)
    torch.save({**state, "lm_head.weight": state["wte"]}, tmp_path / "other")
    reading = Reading(config=VARIANTS["no-biases"], recognised=True)
    same_weights(load_model(preset=None, checkpoint=tmp_path / "other", seed=0, reading=reading).model, model)


def test_by_command(andrea: Andrea, tmp_path: Path) -> None:
    config = VARIANTS["published"]
    save_file(microgpt(variant_model(config)), tmp_path / "other")
    (tmp_path / "shape.json").write_text(json.dumps(config.stated()))
    refused = andrea("build", tmp_path / "out", "--checkpoint", tmp_path / "other")
    assert (refused.code, "it looks like microgpt" in refused.error) == (2, True)
    options = ("--recognise", "--config", tmp_path / "shape.json")
    done = andrea("convert", tmp_path / "other", tmp_path / "ours.safetensors", *options)
    assert done.code == 0, done.stderr
    assert "A GUESS" in done.stdout


def test_another_shape_than_it_has_is_refused(tmp_path: Path) -> None:
    config = VARIANTS["no-biases"]
    save_file(short_names(variant_model(config)), tmp_path / "other")
    reading = Reading(config=replace(config, n_layer=3), recognised=True)
    with pytest.raises(CheckpointError, match="n_layer 2"):
        load_model(preset=None, checkpoint=tmp_path / "other", seed=0, reading=reading)
