"""The same model as transformers' GPT-2: the oracle that the reference is held against."""

from __future__ import annotations

from typing import Any

from transformers import GPT2Config, GPT2LMHeadModel

from andrea_model.model import Andrea

_RENAMED = {
    "token_embed": "wte",
    "position_embed": "wpe",
    "blocks": "h",
    "qkv": "c_attn",
    "fc": "c_fc",
    "proj": "c_proj",
}


def gpt2_from(model: Andrea) -> Any:
    """GPT2LMHeadModel with this model's weights. Its Conv1D stores ``[in, out]``, as the reference does.

    What a variant of the architecture lacks is there as what changes nothing: a bias of 0, a gain of 1.
    """
    config = model.config
    stated: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "n_positions": config.n_ctx,
        "n_embd": config.d_model,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_inner": config.mlp_dim,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "tie_word_embeddings": config.tied_head,
        "attn_implementation": "eager",
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    gpt2: Any = GPT2LMHeadModel(GPT2Config(**stated))
    gpt2.eval()
    for name, parameter in gpt2.named_parameters():
        parameter.requires_grad_(False).fill_(0.0 if name.endswith(".bias") else 1.0)
    weights = {_their_name(name): parameter for name, parameter in model.named_parameters()}
    missing, unexpected = gpt2.load_state_dict(weights, strict=False)
    assert unexpected == []
    if config == config.of_the_lessons:
        assert missing == ["lm_head.weight"]  # tied to wte, so it has its value
        assert gpt2.lm_head.weight.data_ptr() == gpt2.transformer.wte.weight.data_ptr()
    return gpt2


def _their_name(name: str) -> str:
    path = ".".join(_RENAMED.get(part, part) for part in name.split("."))
    return "lm_head.weight" if name == "head.weight" else f"transformer.{path}"
