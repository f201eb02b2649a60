"""A family of checkpoints is one file and one line: its reader gives our names and orientation, and is held to them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import save_file

from andrea_export.core.errors import CheckpointError
from andrea_export.weights import readers
from andrea_export.weights.load import LoadedModel, load_model
from andrea_export.weights.readers import Checkpoint, Reading, open_checkpoint
from andrea_export.weights.readers.base import Spelling
from andrea_export.weights.readers.stored import safetensors_in
from andrea_model import PRESETS
from support.foreign import MATRICES, same_weights

SPELLING = Spelling(modules={"token_embed": ("wte",), "position_embed": ("wpe",)})


def foreign_checkpoint(path: Path, reading: Reading) -> Checkpoint:
    """Another family: other names for the embeddings, every matrix ``[out, in]``."""
    return Checkpoint(
        path=path,
        family="foreign",
        tensors=safetensors_in(path)[0],
        spelling=SPELLING,
        config=PRESETS["andrea-tiny"],
        orientation=reading.orientation,
    )


@pytest.fixture
def foreign_file(tiny: LoadedModel, tmp_path: Path) -> Path:
    tensors = {
        SPELLING.parts(name)[0]: (parameter.T if name.endswith(MATRICES) else parameter).detach().contiguous()
        for name, parameter in tiny.model.named_parameters()
    }
    save_file(tensors, tmp_path / "foreign.safetensors")
    return tmp_path / "foreign.safetensors"


def test_a_family_needs_a_reader_and_a_line(
    tiny: LoadedModel, foreign_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CheckpointError, match=r"missing token_embed\.weight"):
        load_model(preset="andrea-tiny", checkpoint=foreign_file, seed=0)
    monkeypatch.setattr(readers, "OPENERS", {"checkpoint": foreign_checkpoint})
    loaded = load_model(preset=None, checkpoint=foreign_file, seed=0)
    assert loaded.config == tiny.config
    same_weights(loaded.model, tiny.model)  # the square attn.proj, too: the others prove how it is stored


def test_a_wrong_word_about_the_orientation_is_caught(foreign_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "OPENERS", {"checkpoint": foreign_checkpoint})
    with pytest.raises(CheckpointError, match=r"blocks\.0\.mlp\.fc\.weight has shape \[256, 64\]"):
        load_model(preset=None, checkpoint=foreign_file, seed=0, reading=Reading(orientation="in-out"))


def test_our_own_names_in_linear_orientation_are_read_as_they_prove_to_be(tiny: LoadedModel, tmp_path: Path) -> None:
    path = tmp_path / "linear.safetensors"
    tensors = {name: parameter.detach() for name, parameter in tiny.model.named_parameters()}
    save_file({name: (t.T if name.endswith(MATRICES) else t).contiguous() for name, t in tensors.items()}, path)
    same_weights(load_model(preset="andrea-tiny", checkpoint=path, seed=0).model, tiny.model)


def test_where_every_matrix_is_square_the_orientation_must_be_said(tiny: LoadedModel, foreign_file: Path) -> None:
    """q, k and v apart, and an MLP as wide as the model: no shape tells."""
    apart = Spelling(
        modules={**SPELLING.modules, "blocks.N.attn.qkv": tuple(f"blocks.N.attn.{part}" for part in "qkv")}
    )
    opened = replace(open_checkpoint(foreign_file), spelling=apart)
    config = replace(tiny.config, mlp_dim=tiny.config.d_model)
    with pytest.raises(CheckpointError, match="every matrix is square") as caught:
        opened.check(config)
    assert str(caught.value.hint).startswith("say it: --orientation in-out")


def test_a_file_of_no_family_is_refused_by_our_own_reader(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"hello, this is text")
    with pytest.raises(CheckpointError, match="is not a whole safetensors file"):
        open_checkpoint(path)
