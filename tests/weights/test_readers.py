"""A family of checkpoints is one file and one line: its reader gives our names and orientation, and is held to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from andrea_export.core.errors import CheckpointError
from andrea_export.weights import readers
from andrea_export.weights.load import LoadedModel, load_model
from andrea_export.weights.readers import reader_of
from andrea_export.weights.readers.andrea import AndreaReader
from andrea_export.weights.readers.base import CheckpointHeader
from andrea_model import PRESETS, AndreaConfig

NAMES = {"token_embed": "wte", "position_embed": "wpe"}
TRANSPOSED = (".attn.qkv.weight", ".attn.proj.weight", ".mlp.fc.weight", ".mlp.proj.weight")


def foreign(name: str) -> str:
    """A parameter's name in the foreign family."""
    module, _, leaf = name.rpartition(".")
    return f"{NAMES.get(module, module)}.{leaf}"


class ForeignReader:
    """Another family: other names for the embeddings, every matrix ``[out, in]``."""

    def __init__(self, *, forgets: str = "") -> None:
        self.forgets = forgets

    def read_header(self, path: Path) -> CheckpointHeader:
        return CheckpointHeader(
            tensors=AndreaReader().read_header(path).tensors, metadata={}, config=PRESETS["andrea-tiny"]
        )

    def check(self, header: CheckpointHeader, config: AndreaConfig, path: Path) -> None:
        from andrea_model.model import parameter_shapes

        shapes = parameter_shapes(config)
        wanted = {foreign(name): shape[::-1] if name.endswith(TRANSPOSED) else shape for name, shape in shapes.items()}
        if wanted != {name: shape for name, (_, shape) in header.tensors.items()}:
            raise CheckpointError(f"checkpoint {path} does not fit")

    def tensors(self, path: Path, config: AndreaConfig) -> Iterator[tuple[str, torch.Tensor]]:
        from andrea_model.model import parameter_shapes

        with safe_open(path, framework="pt") as file:
            for name in parameter_shapes(config):
                if name != self.forgets:
                    tensor = file.get_tensor(foreign(name))
                    yield name, tensor.T if name.endswith(TRANSPOSED) else tensor


@pytest.fixture
def foreign_file(tiny: LoadedModel, tmp_path: Path) -> Path:
    tensors = {
        foreign(name): (parameter.T if name.endswith(TRANSPOSED) else parameter).detach().contiguous()
        for name, parameter in tiny.model.named_parameters()
    }
    save_file(tensors, tmp_path / "foreign.safetensors")
    return tmp_path / "foreign.safetensors"


def test_a_family_needs_a_reader_and_a_line(
    tiny: LoadedModel, foreign_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CheckpointError, match=r"missing token_embed\.weight"):
        load_model(preset="andrea-tiny", checkpoint=foreign_file, seed=0)
    monkeypatch.setattr(readers, "READERS", {"checkpoint": ForeignReader()})
    loaded = load_model(preset=None, checkpoint=foreign_file, seed=0)
    assert loaded.config == tiny.config
    for (name, parameter), wanted in zip(loaded.model.named_parameters(), tiny.model.parameters(), strict=True):
        assert torch.equal(parameter, wanted), name


def test_a_reader_that_leaves_a_parameter_out_is_caught(foreign_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "READERS", {"checkpoint": ForeignReader(forgets="ln_f.bias")})
    with pytest.raises(CheckpointError, match=r"ln_f\.bias was not read"):
        load_model(preset=None, checkpoint=foreign_file, seed=0)


def test_a_reader_that_forgets_to_transpose_is_caught(foreign_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Untransposed(ForeignReader):
        def tensors(self, path: Path, config: AndreaConfig) -> Iterator[tuple[str, torch.Tensor]]:
            with safe_open(path, framework="pt") as file:
                yield "blocks.0.mlp.fc.weight", file.get_tensor("blocks.0.mlp.fc.weight")

    monkeypatch.setattr(readers, "READERS", {"checkpoint": Untransposed()})
    with pytest.raises(CheckpointError, match=r"blocks\.0\.mlp\.fc\.weight"):
        load_model(preset=None, checkpoint=foreign_file, seed=0)


def test_a_file_of_no_family_is_refused_by_our_own_reader(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"hello, this is text")
    assert isinstance(reader_of(path), AndreaReader)
    with pytest.raises(CheckpointError, match="is not a whole safetensors file"):
        reader_of(path).read_header(path)
