"""``convert``: what it writes is what it read, for our own reader and for the real transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from andrea_export.weights.load import LoadedModel, load_model, save_checkpoint
from andrea_model.model import Andrea as Model
from support.foreign import same_weights, write_gpt2, write_llmc, write_nanogpt, write_published
from support.paths import FIXTURES
from support.variants import VARIANTS, variant_model
from tests.conftest import Andrea
from tests.weights.test_formats import BUILT_IN, PUBLISHED

AUSTEN, HELD_OUT = FIXTURES / "austen.safetensors", FIXTURES / "austen_held_out.txt"


def read(path: Path) -> Model:
    return load_model(preset=None, checkpoint=path, seed=0).model


def logits_of_transformers(folder: Path, tokens: list[int]) -> Any:
    transformers = pytest.importorskip("transformers")
    model = transformers.GPT2LMHeadModel.from_pretrained(folder)
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits


FORMATS: dict[str, Callable[[Path, Model], Path]] = {
    "gpt2": lambda folder, model: write_gpt2(folder / "gpt2", model),
    "shards": lambda folder, model: write_gpt2(folder / "gpt2", model, num_shards=3),
    "nanogpt": lambda folder, model: write_nanogpt(folder / "ckpt.pt", model),
    "llmc": lambda folder, model: write_llmc(folder / "gpt2.bin", model, num_rows=384),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_into_our_own_and_into_transformers(
    andrea: Andrea, trained: LoadedModel, tmp_path: Path, name: str
) -> None:
    source = FORMATS[name](tmp_path, trained.model)
    done = andrea("convert", source, tmp_path / "ours.safetensors", "--json")
    assert done.code == 0, done.stderr
    same_weights(read(tmp_path / "ours.safetensors"), trained.model)
    assert andrea("convert", source, tmp_path / "folder").code == 0
    same_weights(read(tmp_path / "folder"), trained.model)
    tokens = list(HELD_OUT.read_bytes()[:64])
    with torch.inference_mode():
        ours = trained.model(torch.tensor([tokens]))[0]
    torch.testing.assert_close(logits_of_transformers(tmp_path / "folder", tokens), ours, rtol=0, atol=2e-5)
    guess = load_model(preset=None, checkpoint=tmp_path / "ours.safetensors", seed=0).origin.guess
    assert (guess is not None) == (name == "nanogpt")  # it is not forgotten on the way
    assert load_model(preset=None, checkpoint=tmp_path / "folder", seed=0).origin.guess == guess


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_give_transformers_logits(andrea: Andrea, tmp_path: Path, name: str) -> None:
    model = variant_model(VARIANTS[name])
    source = tmp_path / "source.safetensors"
    save_checkpoint(model, source)
    assert andrea("convert", source, tmp_path / "folder").code == 0
    tokens = [1, 2, 3, 250, 5, 6]
    with torch.inference_mode():
        ours = model(torch.tensor([tokens]))[0]
    torch.testing.assert_close(logits_of_transformers(tmp_path / "folder", tokens), ours, rtol=1e-4, atol=1e-4)


def test_the_fixture_keeps_its_bytes_and_its_tokenizer(andrea: Andrea, tmp_path: Path) -> None:
    """There and back: every tensor keeps its type."""
    assert andrea("convert", AUSTEN, tmp_path / "folder").code == 0
    assert andrea("convert", tmp_path / "folder", tmp_path / "again.safetensors").code == 0
    before, after = load_file(AUSTEN), load_file(tmp_path / "again.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) and before[name].dtype == after[name].dtype for name in before)
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder")
    assert tokenizer("Emma Ü🙂")["input_ids"] == list("Emma Ü🙂".encode())


def test_a_texts_loss_tells_a_wrong_order(andrea: Andrea, tmp_path: Path) -> None:
    done = andrea("convert", AUSTEN, tmp_path / "a.safetensors", "--text", HELD_OUT, "--json")
    said = json.loads(done.stdout)["text"]
    assert said["nats"] < 3 < said["bound"] == pytest.approx(np.log(257))
    tensors = load_file(AUSTEN)
    order = sorted(name for name in tensors if name.endswith("attn.proj.weight"))
    turned = {**tensors, **{name: tensors[name].T.contiguous() for name in order}}  # square: no shape can tell
    turned |= {name: tensors[name].flip(0).contiguous() for name in tensors if "embed" in name}
    with safe_open(AUSTEN, framework="pt") as file:
        save_file(turned, tmp_path / "wrong.safetensors", metadata=file.metadata())
    done = andrea("convert", tmp_path / "wrong.safetensors", tmp_path / "b.safetensors", "--text", HELD_OUT)
    assert "no better than a model that knows nothing" in done.stdout.replace("\n ", "")


def test_the_published_guess_is_said(andrea: Andrea, tmp_path: Path) -> None:
    source = write_published(tmp_path / "andrea.bin", variant_model(PUBLISHED), names=BUILT_IN)
    shape = tmp_path / "shape.json"
    shape.write_text(json.dumps(PUBLISHED.stated()))
    done = andrea("convert", source, tmp_path / "a.safetensors", "--config", shape)
    assert done.code == 0, done.stderr
    assert "note: A GUESS: the order of its tensors is assumed" in done.stderr
    assert "A GUESS" in done.stdout
    built = andrea(
        "build", tmp_path / "out", "--checkpoint", tmp_path / "a.safetensors", "--target", "onnx",
        "--cache-dir", tmp_path / "cache",
    )  # fmt: skip
    assert "A GUESS" in built.stdout
    assert "A GUESS" in andrea("run", tmp_path / "out", "--tokens", "1", "--json").stdout


@pytest.mark.parametrize("name", ["x.safetensors", "folder"])
def test_what_convert_refuses_leaves_nothing_behind(andrea: Andrea, tmp_path: Path, name: str) -> None:
    tensors = load_file(AUSTEN)
    tensors["ln_f.bias"][3] = float("nan")
    with safe_open(AUSTEN, framework="pt") as file:
        save_file(tensors, tmp_path / "nan.safetensors", metadata=file.metadata())
    before = sorted(tmp_path.iterdir())
    refused = andrea("convert", tmp_path / "nan.safetensors", tmp_path / name)
    assert (refused.code, "ln_f.bias (1 of 128 values)" in refused.error) == (2, True)
    assert sorted(tmp_path.iterdir()) == before
    refused = andrea("convert", AUSTEN, tmp_path / "nan.safetensors")
    assert (refused.code, refused.error) == (2, f"destination {tmp_path / 'nan.safetensors'} exists")
    refused = andrea("convert", AUSTEN, tmp_path / "absent" / name)
    assert "is not a folder" in refused.error
    assert sorted(tmp_path.iterdir()) == before


def test_a_large_type_is_kept(andrea: Andrea, trained: LoadedModel, tmp_path: Path) -> None:
    config = trained.config
    state = {name: parameter.detach().double() for name, parameter in trained.model.named_parameters()}
    save_file(state, tmp_path / "f64.safetensors")
    (tmp_path / "shape.json").write_text(json.dumps(replace(config).stated()))
    options = ("--config", tmp_path / "shape.json")
    assert andrea("convert", tmp_path / "f64.safetensors", tmp_path / "out.safetensors", *options).code == 0
    assert load_file(tmp_path / "out.safetensors")["ln_f.bias"].dtype == torch.float64
    same_weights(read(tmp_path / "out.safetensors"), trained.model)
