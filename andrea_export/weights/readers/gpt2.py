"""Hugging Face's GPT-2: a folder with config.json and weights, as safetensors or pytorch_model.bin, in one file or in
shards. Its Conv1D matrices are ``[in, out]``, as ours. What is another architecture is refused by name.

Source: transformers' configuration_gpt2.py and modeling_gpt2.py.
"""

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from andrea_export.core.errors import CheckpointError, first_line
from andrea_export.core.names import GUESS_KEY, WEIGHTS_KEY
from andrea_export.weights.readers.base import Checkpoint, Reading, Spelling, listed
from andrea_export.weights.readers.stored import StoredTensor, pickle_in, pickled_tensors, safetensors_in, same
from andrea_model.config import AndreaConfig

GPT2 = Spelling(
    modules={
        "token_embed": ("wte",),
        "position_embed": ("wpe",),
        "blocks.N.ln_1": ("h.N.ln_1",),
        "blocks.N.attn.qkv": ("h.N.attn.c_attn",),
        "blocks.N.attn.proj": ("h.N.attn.c_proj",),
        "blocks.N.ln_2": ("h.N.ln_2",),
        "blocks.N.mlp.fc": ("h.N.mlp.c_fc",),
        "blocks.N.mlp.proj": ("h.N.mlp.c_proj",),
        "ln_f": ("ln_f",),
        "head": ("lm_head",),
    },
    prefixes=("transformer.", ""),
    whole=("lm_head",),
    buffers=r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",
)
CONFIG = "config.json"
_ONE, _SHARDED = ("model.safetensors", "pytorch_model.bin"), "{}.index.json"
# transformers' defaults, for keys that a config.json leaves out.
_DEFAULTS = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}
_TANH_GELUS = ("gelu_new", "gelu_pytorch_tanh")
_OTHERWISE = {
    "gelu": "the erf form of GELU, off by up to 4.73e-4 from the tanh form, which is the model's",
    "relu": "0 below 0, where the model's GELU is not",
    "silu": "x·sigmoid(x), where the model has the tanh form of GELU",
}
_FAMILIES = {
    "llama": "rotary positions, RMSNorm, a gated MLP",
    "mistral": "rotary positions, RMSNorm, a gated MLP, grouped keys",
    "qwen2": "rotary positions, RMSNorm, a gated MLP, grouped keys",
    "gpt_neox": "rotary positions, a parallel block",
    "gpt_neo": "local attention without its scale",
    "opt": "positions from 2, ReLU",
    "bert": "attention in both directions",
}


def open_gpt2(folder: Path, reading: Reading) -> Checkpoint:
    """Raises: CheckpointError for another architecture, missing shards, or an index that leaves the folder."""
    facts = read_json(folder / CONFIG)
    config = config_of(facts, folder / CONFIG)
    tensors, metadata = _tensors(folder)
    return Checkpoint(
        path=folder,
        family="Hugging Face GPT-2",
        tensors=_without_tied_head(tensors, facts, folder),
        spelling=GPT2,
        config=config,
        orientation=reading.orientation,
        untrained=metadata.get(WEIGHTS_KEY),
        guess=metadata.get(GUESS_KEY),
        hint=lambda _: (
            f"{CONFIG} says {config.n_layer} blocks, d_model {config.d_model}, vocabulary "
            f"{config.vocab_size}: is it this file's?"
        ),
    )


def config_of(facts: Mapping[str, Any], where: Path) -> AndreaConfig:
    """The shape that a config.json of GPT-2 states. Raises: CheckpointError that names every key in the way."""
    kind = facts.get("model_type", "gpt2")
    if kind != "gpt2":
        why = f" ({_FAMILIES[kind]})" if kind in _FAMILIES else ""
        raise CheckpointError(
            f"{where}: model_type is {kind!r}, which is another architecture{why}, expected 'gpt2'",
            hint="only GPT-2's architecture and its variants can be built",
        )
    problems = []
    activation = facts.get("activation_function", "gelu_new")
    if activation not in _TANH_GELUS:
        what = f": {_OTHERWISE[activation]}" if activation in _OTHERWISE else ""
        problems.append(f"activation_function is {activation!r}{what}; expected {' or '.join(_TANH_GELUS)}")
    for key, wanted in (
        ("scale_attn_weights", True),
        ("scale_attn_by_inverse_layer_idx", False),
        ("add_cross_attention", False),
    ):
        if facts.get(key, wanted) is not wanted:
            problems.append(f"{key} is {json.dumps(facts[key])}, expected {json.dumps(wanted)}")
    if problems:
        raise CheckpointError(
            listed(f"{where} is of another model", problems), hint="what it computes is not what would be built"
        )
    values = {**_DEFAULTS, **{key: facts[key] for key in _DEFAULTS if key in facts}}
    try:
        return AndreaConfig(
            d_model=values["n_embd"],
            n_head=values["n_head"],
            n_layer=values["n_layer"],
            n_ctx=values["n_positions"],
            vocab_size=values["vocab_size"],
            mlp_dim=facts.get("n_inner") or 4 * values["n_embd"],
            layer_norm_epsilon=float(facts.get("layer_norm_epsilon", 1e-5)),
            tied_head=facts.get("tie_word_embeddings", True),
        )
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{where} is not a configuration: {first_line(error)}") from None


def read_json(path: Path) -> dict[str, Any]:
    """An object in a JSON file. Raises: CheckpointError for a file that is missing, not JSON, or names a key twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is in it twice")
        return found

    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=once)
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint {path.parent} has no {path.name}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {first_line(error)}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return content


def _tensors(folder: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """What the folder's weights hold, whichever way they are stored, and a single file's metadata."""
    for name in _ONE:
        if (folder / name).is_file():
            return _in_file(folder / name)
        if (folder / _SHARDED.format(name)).is_file():
            return _in_shards(folder, folder / _SHARDED.format(name)), {}
    raise CheckpointError(
        f"checkpoint {folder} has no weights", hint=f"expected {' or '.join(_ONE)}, or the index of its shards"
    )


def _in_file(file: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    if file.suffix == ".safetensors":
        return safetensors_in(file)
    content = pickle_in(file)
    if not isinstance(content, Mapping):
        raise CheckpointError(f"checkpoint {file} holds a {type(content).__name__}, expected a state dict")
    return pickled_tensors(content, file), {}


def _in_shards(folder: Path, index: Path) -> dict[str, StoredTensor]:
    """The tensors of all shards, each from the one that the index names."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(place, str) for place in places.values()):
        raise CheckpointError(f"{index} has no weight_map from tensors to files")
    files = sorted(set(places.values()))
    if outside := [name for name in files if len(PurePosixPath(name).parts) != 1 or name in ("", "..")]:
        raise CheckpointError(f"{index} names a file outside its folder: {outside[0]!r}")
    if missing := [name for name in files if not (folder / name).is_file()]:
        raise CheckpointError(
            listed(f"checkpoint {folder} is not whole", [f"missing {name}" for name in missing]),
            hint=f"{index.name} names {len(files)} files; copy all of them",
        )
    found = {name: _in_file(folder / name)[0] for name in files}
    problems = [f"{name} is not in {place}" for name, place in places.items() if name not in found[place]]
    problems += [f"{name} is in {file} too" for file in files for name in found[file] if places.get(name, file) != file]
    problems += [
        f"{name} in {file} is not in the index" for file in files for name in found[file] if name not in places
    ]
    if problems:
        raise CheckpointError(listed(f"{index} and its shards disagree", problems), hint="copy all of them again")
    return {name: found[place][name] for name, place in places.items()}


def _without_tied_head(
    tensors: dict[str, StoredTensor], facts: Mapping[str, Any], where: Path
) -> dict[str, StoredTensor]:
    """The tensors without a stored copy of the tied head, which must be the embedding's. Raises: CheckpointError."""
    head = tensors.get("lm_head.weight")
    if head is None or not facts.get("tie_word_embeddings", True):
        return tensors
    found, tied = tied_head(tensors)
    if not tied:
        raise CheckpointError(
            f"checkpoint {where}: lm_head.weight is not wte.weight, and the head is said to be tied to it",
            hint='if the model has a head of its own, its config.json says "tie_word_embeddings": false',
        )
    return found


def tied_head(tensors: dict[str, StoredTensor]) -> tuple[dict[str, StoredTensor], bool]:
    """The tensors without a stored copy of a tied head, and whether the head is tied: absent, or equal to wte."""
    head = tensors.get("lm_head.weight")
    if head is None:
        return tensors, True
    embedding = tensors.get("transformer.wte.weight", tensors.get("wte.weight"))
    if embedding is None or not same(head, embedding):
        return tensors, False
    return {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}, True
