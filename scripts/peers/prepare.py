"""The models that all contenders run, as transformers' GPT-2 and as a bundle.

Seeded ANDREA-120M weights are what is timed; the small trained checkpoint of the tests is what accuracy is measured on,
for on random weights a token's place in the order of all means little.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from andrea_export.build.build import build_bundle
from andrea_export.core.progress import Silent
from andrea_export.targets.recipe import recipe_from_mapping
from andrea_export.weights.load import LoadedModel, load_model
from support.paths import FIXTURES

PRESET, SEED = "andrea-120m", 0
CHECKPOINT = FIXTURES / "austen.safetensors"
_OUTSIDE = {"token_embed": "wte", "position_embed": "wpe", "ln_f": "ln_f"}
_NAMES = {"attn.qkv": "attn.c_attn", "attn.proj": "attn.c_proj", "mlp.fc": "mlp.c_fc", "mlp.proj": "mlp.c_proj"}


def load_weights(checkpoint: Path | None) -> LoadedModel:
    """The checkpoint, or the seeded 120M weights where there is none."""
    return load_model(preset=None if checkpoint else PRESET, checkpoint=checkpoint, seed=SEED)


def write_weights(folder: Path, checkpoint: Path | None) -> None:
    """``hf/`` with weights, configuration and a tokenizer of made-up words, and ``weights.npz`` under GPT-2's names."""
    target = folder / "hf"
    if (target / "config.json").exists():
        return
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    loaded = load_weights(checkpoint)
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


def write_prompts(folder: Path, prompts: list[list[int]], checkpoint: Path | None) -> None:
    """``prompts.json``, and torch's next-token logits in fp32 after each, ``reference.npy`` ``[prompts, V]``."""
    import torch

    file = folder / "prompts.json"
    content = json.dumps(prompts)
    if (folder / "reference.npy").exists() and file.exists() and file.read_text(encoding="utf-8") == content:
        return
    model = load_weights(checkpoint).model
    with torch.inference_mode():
        rows = [model(torch.tensor([prompt]))[0][0, -1].numpy() for prompt in prompts]
    np.save(folder / "reference.npy", np.stack(rows))
    file.write_text(content, encoding="utf-8")


def build_our_bundle(folder: Path, checkpoint: Path | None) -> None:
    """``bundle/`` in every precision of the CPU graphs; built again where the one there was made by other code."""
    values = {"targets": ["onnx", "ort-cpu"], "precisions": ["fp32", "int8", "int4"]}
    build_bundle(
        folder / "bundle",
        recipe_from_mapping(values if checkpoint else {**values, "preset": PRESET, "seed": SEED}, where="bench_peers"),
        checkpoint=checkpoint,
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
