"""The model that all contenders run: seeded ANDREA-120M weights, as transformers' GPT-2 and as a bundle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from andrea_export.build import build_bundle
from andrea_export.checkpoint import load_model
from andrea_export.progress import Silent
from andrea_export.recipe import recipe_from_mapping

PRESET, SEED = "andrea-120m", 0
_OUTSIDE = {"token_embed": "wte", "position_embed": "wpe", "ln_f": "ln_f"}
_NAMES = {"attn.qkv": "attn.c_attn", "attn.proj": "attn.c_proj", "mlp.fc": "mlp.c_fc", "mlp.proj": "mlp.c_proj"}


def write_weights(folder: Path) -> None:
    """``hf/`` with weights, configuration and a tokenizer of made-up words, and ``weights.npz`` under GPT-2's names."""
    target = folder / "hf"
    if (target / "config.json").exists():
        return
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    loaded = load_model(preset=PRESET, checkpoint=None, seed=SEED)
    ours = loaded.config
    config: Any = GPT2Config(
        vocab_size=ours.vocab_size,
        n_positions=ours.n_ctx,
        n_embd=ours.d_model,
        n_layer=ours.n_layer,
        n_head=ours.n_head,
        n_inner=ours.mlp_dim,
        activation_function="gelu_new",
        layer_norm_epsilon=ours.layer_norm_epsilon,
        bos_token_id=None,
        eos_token_id=None,
    )
    model: Any = GPT2LMHeadModel(config)
    weights = {_gpt2_name(name): parameter.detach() for name, parameter in loaded.model.named_parameters()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise RuntimeError(f"weights do not fit: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    model.save_pretrained(target)
    words = Tokenizer(WordLevel({f"t{token}": token for token in range(ours.vocab_size)}, unk_token="t0"))
    words.pre_tokenizer = Whitespace()
    fast: Any = PreTrainedTokenizerFast
    tokenizer = fast(tokenizer_object=words, unk_token="t0", bos_token="t0", eos_token="t0")
    tokenizer.save_pretrained(target)
    # transformers 5 names a class that 4, which some peers pin, does not have.
    described = target / "tokenizer_config.json"
    values = json.loads(described.read_text(encoding="utf-8"))
    described.write_text(json.dumps({**values, "tokenizer_class": "PreTrainedTokenizerFast"}), encoding="utf-8")
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in weights.items()}
    np.savez(folder / "weights.npz", **arrays)


def reference_logits(folder: Path, number: int, length: int) -> Any:
    """torch's next-token logits in fp32 after the worker's prompts, ``[number, V]``; kept in the folder."""
    import torch

    from peers.worker import prompt_of

    file = folder / f"reference-{number}x{length}.npy"
    if not file.exists():
        model = load_model(preset=PRESET, checkpoint=None, seed=SEED).model
        with torch.inference_mode():
            rows = [model(torch.tensor([prompt_of(length, row)]))[0][0, -1].numpy() for row in range(number)]
        np.save(file, np.stack(rows))
    return np.load(file)


def build_our_bundle(folder: Path) -> None:
    """``bundle/`` in every precision of the CPU graphs, unless there is one: delete it to measure a changed build."""
    if (folder / "bundle" / "manifest.json").exists():
        return
    recipe = recipe_from_mapping(
        {"preset": PRESET, "seed": SEED, "targets": ["onnx", "ort-cpu"], "precisions": ["fp32", "int8", "int4"]},
        where="bench_peers",
    )
    build_bundle(
        folder / "bundle",
        recipe,
        checkpoint=None,
        force=False,
        cache_dir=folder / "cache",
        progress=Silent(),
    )


def _gpt2_name(name: str) -> str:
    if name.startswith("blocks."):
        _, index, rest = name.split(".", 2)
        layer, _, kind = rest.rpartition(".")
        return f"transformer.h.{index}.{_NAMES.get(layer, layer)}.{kind}"
    module, _, kind = name.rpartition(".")
    return f"transformer.{_OUTSIDE[module]}.{kind}"
