"""A model written in the formats of others, for readers to read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from andrea_export.weights.readers.gpt2 import GPT2
from andrea_model.config import AndreaConfig
from andrea_model.model import Andrea

MATRICES = (".attn.qkv.weight", ".attn.proj.weight", ".mlp.fc.weight", ".mlp.proj.weight")


def gpt2_config(config: AndreaConfig, **more: Any) -> dict[str, Any]:
    """What transformers' config.json says of such a model."""
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
        **more,
    }


def gpt2_state(model: Andrea, prefix: str = "transformer.", *, linear: bool = False) -> dict[str, torch.Tensor]:
    """Its weights under GPT-2's names; ``linear``: every matrix ``[out, in]``, as nanoGPT has them."""
    state = {}
    for name, parameter in model.named_parameters():
        (own,) = GPT2.parts(name)
        weight = (parameter.T if linear and name.endswith(MATRICES) else parameter).detach()
        state[own if own == "lm_head.weight" else prefix + own] = weight.clone().contiguous()
    return state


def write_gpt2(folder: Path, model: Andrea, *, num_shards: int = 1, **config: Any) -> Path:
    """A folder as transformers writes it, in safetensors."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(gpt2_config(model.config, **config)), encoding="utf-8")
    state = gpt2_state(model)
    if num_shards == 1:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    files = [f"model-{number + 1:05}-of-{num_shards:05}.safetensors" for number in range(num_shards)]
    places = {name: files[index % num_shards] for index, name in enumerate(state)}
    for file in files:
        save_file({name: state[name] for name, place in places.items() if place == file}, folder / file)
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


def same_weights(one: Andrea, other: Andrea) -> None:
    """Holds two models to be the same, bit for bit."""
    for (name, parameter), wanted in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(parameter, wanted), name
