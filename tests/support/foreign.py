"""A model written in the formats of others, for readers to read."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
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


def write_nanogpt(path: Path, model: Andrea, *, wrapper: str = "_orig_mod.") -> Path:
    """What nanoGPT's train.py saves."""
    state = gpt2_state(model, linear=True)
    if model.config.tied_head:
        state["lm_head.weight"] = state["transformer.wte.weight"]
    config = model.config
    args = {
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_embd": config.d_model,
        "block_size": config.n_ctx,
        "bias": config.bias,
        "vocab_size": config.vocab_size,
        "dropout": 0.0,
    }
    content = {"model": {wrapper + name: tensor for name, tensor in state.items()}, "model_args": args, "iter_num": 5}
    torch.save({**content, "optimizer": {"state": {}}, "best_val_loss": torch.tensor(1.5), "config": {}}, path)
    return path


def write_llmc(path: Path, model: Andrea, *, dtype: torch.dtype = torch.float32, num_rows: int | None = None) -> Path:
    """What llm.c's train_gpt2.py writes; ``num_rows``: the padded vocabulary."""
    config, weights = model.config, {name: parameter.detach() for name, parameter in model.named_parameters()}
    num_rows = num_rows or config.vocab_size
    header = np.zeros(256, "<i4")
    shape = (config.n_ctx, config.vocab_size, config.n_layer, config.n_head, config.d_model, num_rows)
    header[:8] = (20240326, 5 if dtype == torch.bfloat16 else 3, *shape)
    padding = torch.zeros(num_rows - config.vocab_size, config.d_model)
    order = [torch.cat([weights["token_embed.weight"], padding]), weights["position_embed.weight"]]
    for module in ("ln_1", "attn.qkv", "attn.proj", "ln_2", "mlp.fc", "mlp.proj"):
        for leaf in ("weight", "bias"):
            for block in range(config.n_layer):
                weight = weights[f"blocks.{block}.{module}.{leaf}"]
                order.append(weight.T if f".{module}.{leaf}" in MATRICES else weight)
    order += [weights["ln_f.weight"], weights["ln_f.bias"]]
    with path.open("wb") as file:
        file.write(header.tobytes())
        for tensor in order:
            file.write(tensor.to(dtype).contiguous().view(torch.uint8).numpy().tobytes())
    return path


def write_published(path: Path, model: Andrea, *, names: Sequence[str], step: int = 1000) -> Path:
    """A file of the published layout, its tensors in the order of ``names``, every matrix ``[out, in]``."""
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for block in range(model.config.n_layer):
        whole = weights.pop(f"blocks.{block}.attn.qkv.weight")
        for part, matrix in zip("qkv", whole.chunk(3, dim=1), strict=True):
            weights[f"blocks.{block}.attn.{part}.weight"] = matrix
    turned = [weights[name] if "blocks." not in name else weights[name].T for name in names]
    flat = torch.cat([tensor.flatten() for tensor in turned]).numpy()
    assert flat.size == sum(weight.numel() for weight in weights.values())
    with path.open("wb") as file:
        file.write(struct.pack("<ii", step, flat.size))
        file.write(flat.astype("<f4").tobytes())
        file.write(np.full(2 * flat.size, np.nan, "<f4").tobytes())  # Adam's moments, which nobody reads
    return path
