"""Readers of weights, one file a family: each owns its foreign names, shapes and orientation.

To add a family: a function in a file of its own that opens one as a ``Checkpoint``, a kind in ``recognise`` where
nothing there knows such content, and a line in ``OPENERS``.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from andrea_export.core.errors import CheckpointError
from andrea_export.weights.readers.andrea import open_andrea
from andrea_export.weights.readers.base import Checkpoint, Reading, has_names_of
from andrea_export.weights.readers.gpt2 import CONFIG, GPT2, open_gpt2, tied_head
from andrea_export.weights.readers.llmc import open_llmc
from andrea_export.weights.readers.nanogpt import open_nanogpt, unwrapped
from andrea_export.weights.readers.published import open_published
from andrea_export.weights.readers.recognise import FileKind, recognise
from andrea_export.weights.readers.stored import StoredTensor, pickle_in, pickled_tensors, safetensors_in
from andrea_export.weights.readers.unknown import open_unknown

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
    return _open_named(path, tensors, metadata, reading)


def _open_pickle(path: Path, reading: Reading) -> Checkpoint:
    content = pickle_in(path)
    if not isinstance(content, Mapping):
        raise CheckpointError(f"checkpoint {path} holds a {type(content).__name__}, expected a state dict")
    if "model" in content and "model_args" in content:
        return open_nanogpt(path, content, reading)
    inner = next((content[key] for key in ("model", "state_dict") if isinstance(content.get(key), Mapping)), content)
    return _open_named(path, unwrapped(pickled_tensors(inner, path)), {}, reading)


def _open_named(
    path: Path, tensors: dict[str, StoredTensor], metadata: Mapping[str, str], reading: Reading
) -> Checkpoint:
    """By its names: ours, or GPT-2's, of which a file alone does not say the number of heads."""
    if not has_names_of(GPT2, tensors):
        own = any(
            re.fullmatch(r"blocks\.\d+\.(ln|attn|mlp).*|(token|position)_embed\.weight", name) for name in tensors
        )
        looks_like = None if own else open_unknown(path, tensors, reading)
        return looks_like or open_andrea(path, tensors, metadata, reading)
    without_copy, _ = tied_head(tensors)
    return Checkpoint(
        path=path,
        family="GPT-2's names",
        tensors=without_copy,
        spelling=GPT2,
        config=None,
        orientation=reading.orientation,
        metadata=metadata,
        hint=lambda _: "the file does not say its shape: name it with --config FILE",
    )


OPENERS: Mapping[FileKind, Callable[[Path, Reading], Checkpoint]] = {
    "folder": _open_folder,
    "checkpoint": _open_safetensors,
    "pickle": _open_pickle,
    "llm.c": open_llmc,
    "published-checkpoint": open_published,
}
