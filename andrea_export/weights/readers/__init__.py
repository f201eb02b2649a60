"""Readers of weights, one file a family: each owns its foreign names, shapes and orientation.

To add a family: a function in a file of its own that opens one as a ``Checkpoint``, a kind in ``recognise`` where
nothing there knows such content, and a line in ``OPENERS``.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from andrea_export.core.errors import CheckpointError
from andrea_export.weights.readers.andrea import open_andrea
from andrea_export.weights.readers.base import Checkpoint, Reading, has_names_of
from andrea_export.weights.readers.gpt2 import CONFIG, GPT2, open_gpt2
from andrea_export.weights.readers.recognise import FileKind, no_order, recognise
from andrea_export.weights.readers.stored import safetensors_in

__all__ = ["OPENERS", "Checkpoint", "Reading", "is_checkpoint_folder", "open_checkpoint"]


def open_checkpoint(path: Path, reading: Reading | None = None) -> Checkpoint:
    """A checkpoint of any family, opened; a file of no family is opened as ours, which says what is wrong with it.

    Raises: CheckpointError for one that is missing or damaged, or of another architecture.
    """
    if not path.exists():
        raise CheckpointError(f"checkpoint {path}: no such file")
    return OPENERS.get(recognise(path), _open_safetensors)(path, reading or Reading())


def is_checkpoint_folder(path: Path) -> bool:
    """Whether a folder is a checkpoint, rather than a bundle."""
    return (path / CONFIG).is_file() and not (path / "manifest.json").is_file()


def _open_folder(path: Path, reading: Reading) -> Checkpoint:
    if not (path / CONFIG).is_file():
        raise CheckpointError(
            f"checkpoint {path} is a folder", hint=f"a folder of Hugging Face's has a {CONFIG}; else name a file"
        )
    return open_gpt2(path, reading)


def _open_safetensors(path: Path, reading: Reading) -> Checkpoint:
    if not path.is_file():
        raise CheckpointError(f"checkpoint {path}: no such file")
    tensors, metadata = safetensors_in(path)
    if has_names_of(GPT2, tensors) and (path.parent / CONFIG).is_file():
        raise CheckpointError(f"checkpoint {path} is a part of a folder", hint=f"name the folder: {path.parent}")
    return open_andrea(path, tensors, metadata, reading)


def _open_published(path: Path, reading: Reading) -> Checkpoint:
    raise no_order(path)


OPENERS: Mapping[FileKind, Callable[[Path, Reading], Checkpoint]] = {
    "folder": _open_folder,
    "checkpoint": _open_safetensors,
    "published-checkpoint": _open_published,
}
