"""nanoGPT's checkpoints: what ``torch.save`` wrote of ``model`` and ``model_args``, under GPT-2's names, every matrix
``[out, in]``; read weights-only. And any other state dict of torch, under names that something here knows.

Source: nanoGPT's train.py and model.py.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from andrea_export.core.errors import CheckpointError, first_line
from andrea_export.weights.readers.base import Checkpoint, Reading
from andrea_export.weights.readers.gpt2 import GPT2, tied_head
from andrea_export.weights.readers.stored import StoredTensor, pickled_tensors
from andrea_model.config import AndreaConfig

_KEYS = {
    "n_embd": "d_model",
    "n_head": "n_head",
    "n_layer": "n_layer",
    "block_size": "n_ctx",
    "vocab_size": "vocab_size",
}
_WRAPPERS = ("_orig_mod.", "module.")  # torch.compile's, DistributedDataParallel's
GUESS = "its GELU is taken to be the tanh form; the file does not say, and nanoGPT's own is the erf form since 2023"


def open_nanogpt(path: Path, content: Mapping[str, Any], reading: Reading) -> Checkpoint:
    """Raises: CheckpointError for arguments that are missing or impossible."""
    args, state = content["model_args"], content["model"]
    if not isinstance(args, Mapping) or not isinstance(state, Mapping):
        raise CheckpointError(f"checkpoint {path}: model and model_args are not what nanoGPT saves")
    tensors, tied = tied_head(unwrapped(pickled_tensors(state, path)))
    if missing := [key for key in _KEYS if key not in args]:
        raise CheckpointError(f"checkpoint {path}: model_args has no {', '.join(missing)}")
    try:
        config = AndreaConfig(
            **{ours: args[theirs] for theirs, ours in _KEYS.items()},
            mlp_dim=4 * args["n_embd"],
            tied_head=tied,
            bias=args.get("bias", True),
        )
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"checkpoint {path}: model_args is not a configuration: {first_line(error)}") from None
    return Checkpoint(
        path=path,
        family="nanoGPT",
        tensors=tensors,
        spelling=GPT2,
        config=config,
        orientation="out-in",
        guess=GUESS,
        notes=(f"A GUESS: {GUESS}",),
        hint=lambda _: "model_args and the weights are not of one model",
    )


def unwrapped(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The tensors without what torch.compile and data-parallel training put before every name."""
    found = dict(tensors)
    for wrapper in _WRAPPERS * 2:
        if found and all(name.startswith(wrapper) for name in found):
            found = {name.removeprefix(wrapper): tensor for name, tensor in found.items()}
    return found
