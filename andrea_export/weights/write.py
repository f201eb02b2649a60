"""Weights out, one tensor at a time: our own safetensors, and a folder that transformers loads."""

from __future__ import annotations

import json
import math
import shutil
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from andrea_export.core.errors import CheckpointError, UsageError
from andrea_export.core.names import CONFIG_KEY, GUESS_KEY, WEIGHTS_KEY
from andrea_export.tokens.byte_level import bytes_tokenizer_json
from andrea_export.tokens.files import TOKENIZER_JSON, FoundTokenizer
from andrea_export.weights.origin import WeightsOrigin
from andrea_export.weights.readers import Checkpoint
from andrea_export.weights.readers.base import listed
from andrea_export.weights.readers.gpt2 import GPT2
from andrea_export.weights.readers.stored import FLOAT_TYPES, num_not_finite
from andrea_model.config import AndreaConfig

if TYPE_CHECKING:
    import torch

Named = Iterable[tuple[str, "torch.Tensor"]]
Facts = Mapping[str, tuple[str, tuple[int, ...]]]
"""Name → (element type, shape), in the order of writing."""


def write_andrea(file: Path, opened: Checkpoint, config: AndreaConfig, origin: WeightsOrigin) -> None:
    """Our own safetensors, every tensor in its own type. Raises: CheckpointError for NaN, and a file that changed."""
    metadata = {CONFIG_KEY: json.dumps(config.stated()), **_words(origin)}
    facts = {name: (_type_of(opened, name), shape) for name, shape in _shapes(config).items()}
    with _in_place_of(file) as new:
        write_safetensors(new, facts, opened.weights(config), metadata, opened.path)


def write_gpt2(
    folder: Path, opened: Checkpoint, config: AndreaConfig, origin: WeightsOrigin, tokenizer: FoundTokenizer
) -> None:
    """A folder of Hugging Face's GPT-2, in the weights' own types; what a variant lacks is there as zeros and ones.

    Raises: CheckpointError for NaN, and a file that changed.
    """
    own, whole = _shapes(config), _shapes(config.of_the_lessons)
    if not config.tied_head:
        whole["head.weight"] = own["head.weight"]
    facts = {_their_name(name): (_type_of(opened, name), shape) for name, shape in whole.items()}

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        import torch

        found = opened.weights(config)
        for name, shape in whole.items():
            tensor = next(found)[1] if name in own else (torch.ones if name.endswith("weight") else torch.zeros)(shape)
            yield _their_name(name), tensor

    with _in_place_of(folder) as new:
        new.mkdir()
        metadata = {"format": "pt", **_words(origin)}
        write_safetensors(new / "model.safetensors", facts, weights(), metadata, opened.path)
        _write_json(new / "config.json", gpt2_facts(config, stop=tokenizer.facts.stop))
        _write_tokenizer(new, tokenizer)


def gpt2_facts(config: AndreaConfig, *, stop: tuple[int, ...] = ()) -> dict[str, Any]:
    """What a config.json of transformers says of a model of this shape."""
    end = stop[0] if stop else None
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "activation_function": "gelu_new",
        "vocab_size": config.vocab_size,
        "n_positions": config.n_ctx,
        "n_embd": config.d_model,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_inner": config.mlp_dim,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "tie_word_embeddings": config.tied_head,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "bos_token_id": end,
        "eos_token_id": end,
        "dtype": "float32",
    }


def write_tokenizer_json(folder: Path, content: str) -> None:
    """A ``tokenizer.json`` and what transformers' AutoTokenizer wants beside it."""
    (folder / TOKENIZER_JSON).write_text(content, encoding="utf-8")
    facts = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    _write_json(folder / "tokenizer_config.json", facts)


def _write_tokenizer(folder: Path, tokenizer: FoundTokenizer) -> None:
    """The tokenizer, where it has the form of a ``tokenizer.json``; segments have none."""
    if tokenizer.facts.kind == "bytes":
        write_tokenizer_json(folder, bytes_tokenizer_json())
    elif tokenizer.facts.kind == "library" and tokenizer.content is not None:
        write_tokenizer_json(folder, tokenizer.content)
    if tokenizer.facts.stop:
        _write_json(folder / "generation_config.json", {"eos_token_id": list(tokenizer.facts.stop)})


def write_safetensors(file: Path, facts: Facts, weights: Named, metadata: Mapping[str, str], source: Path) -> None:
    """Tensors as they come, each checked for NaN and written before the next is read.

    Source: https://github.com/huggingface/safetensors#format. The library itself writes tensors that are all in memory.
    """
    import torch

    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, (dtype, shape) in facts.items():
        end = offset + math.prod(shape) * FLOAT_TYPES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    types = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
    broken = []
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name, tensor in weights:
            dtype, shape = facts[name]
            if tuple(tensor.shape) != shape:
                raise CheckpointError(f"checkpoint {source} changed while it was being read")
            if num_bad := num_not_finite(tensor):
                broken.append(f"{name} ({num_bad:,} of {tensor.numel():,} values)")
            tensor.to(types[dtype]).contiguous().flatten().view(torch.uint8).numpy().tofile(out)
    if broken:
        raise CheckpointError(
            listed(f"checkpoint {source} has NaN or Inf", broken),
            hint="the training run diverged; take an earlier checkpoint",
        )


def _words(origin: WeightsOrigin) -> dict[str, str]:
    """What the next reader must know of the weights."""
    said = {WEIGHTS_KEY: str(origin)} if origin.untrained else {}
    return said if origin.guess is None else {**said, GUESS_KEY: origin.guess}


def _shapes(config: AndreaConfig) -> dict[str, tuple[int, ...]]:
    from andrea_model.model import parameter_shapes

    return parameter_shapes(config)


def _type_of(opened: Checkpoint, name: str) -> str:
    """The type of a parameter's first part; fp32 for what the source does not have."""
    stored = opened.tensors.get(opened.names_of(name)[0])
    return stored.dtype if stored is not None else "F32"


def _their_name(name: str) -> str:
    (own,) = GPT2.parts(name)
    return own if own == "lm_head.weight" else f"transformer.{own}"


def _write_json(file: Path, content: object) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _in_place_of(destination: Path) -> Iterator[Path]:
    """A path beside the destination, which takes its place if all went well and is removed otherwise.

    Raises: UsageError where something is there already, or nothing can be.
    """
    if destination.exists() or destination.is_symlink():
        raise UsageError(f"destination {destination} exists", hint="name another, or remove it")
    parent = destination.absolute().parent
    if not parent.is_dir():
        raise UsageError(f"destination {destination}: {parent} is not a folder", hint="make it first")
    scratch = Path(tempfile.mkdtemp(prefix=".andrea-convert-", dir=parent))
    try:
        yield scratch / destination.name
        (scratch / destination.name).rename(destination)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
