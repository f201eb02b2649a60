"""ANDREA, the reference: the whole model in reading order. It knows nothing of exporters, engines or runtimes.

Shapes, as suffixes and in comments:
    B  batch            S  tokens given now      P  tokens already in the cache      K = P + S  keys seen
    C  d_model          F  mlp_dim               H  heads        D  d_head           V  vocabulary

Weights follow the lesson's formula y = x·W + b: every W is stored [in, out], as it is multiplied.

Each step that a layer-by-layer comparison may want to look at is a module of its own, so that its module path
(``blocks.3.mlp.gelu``) is its one name, from here to the engine.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from andrea_model.config import AndreaConfig

KeyValue = tuple[Tensor, Tensor]


class Linear(nn.Module):
    """y = x·W + b over the last axis; W ``[in, out]``, b ``[out]``, or no b where the variant has no biases."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        y = torch.matmul(x, self.weight)
        return y if self.bias is None else y + self.bias


class Embedding(nn.Module):
    """One row of the table for every id."""

    def __init__(self, num_rows: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_rows, d_model))

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)


class LayerNorm(nn.Module):
    """gamma · (x − mean) / sqrt(var + epsilon) + beta over the last axis; biased variance.

    A variant may have no beta, or neither.
    """

    def __init__(self, config: AndreaConfig) -> None:
        super().__init__()
        self.shape = (config.d_model,)
        self.weight = nn.Parameter(torch.empty(self.shape)) if config.norm_parameters else None
        self.bias = nn.Parameter(torch.empty(self.shape)) if config.norm_bias else None
        self.epsilon = config.layer_norm_epsilon

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.shape, self.weight, self.bias, self.epsilon)


class Gelu(nn.Module):
    """x · 0.5 · (1 + tanh(sqrt(2/π) · (x + 0.044715·x³))): the tanh form IS the model's GELU, not an approximation."""

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")


class Residual(nn.Module):
    """The residual stream takes a sublayer's delta."""

    def forward(self, stream: Tensor, delta: Tensor) -> Tensor:
        return stream + delta


class Context(nn.Module):
    """softmax(q·kᵀ / sqrt(D))·v over the allowed keys, heads merged: ``[B, S, C]``."""

    def forward(self, q_BHSD: Tensor, k_BHKD: Tensor, v_BHKD: Tensor, allowed_B1SK: Tensor) -> Tensor:
        context_BHSD = F.scaled_dot_product_attention(q_BHSD, k_BHKD, v_BHKD, attn_mask=allowed_B1SK)
        return context_BHSD.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Multi-head self-attention over the cache and the new tokens; returns the delta and the new cache."""

    def __init__(self, config: AndreaConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.qkv = Linear(config.d_model, 3 * config.d_model, bias=config.bias)
        self.context = Context()
        self.proj = Linear(config.d_model, config.d_model, bias=config.bias)

    def forward(self, x_BSC: Tensor, past: KeyValue | None, allowed_B1SK: Tensor) -> tuple[Tensor, KeyValue]:
        q, k, v = (self.split_heads(part) for part in self.qkv(x_BSC).chunk(3, dim=-1))  # each [B, H, S, D]
        if past is not None:
            k = torch.cat((past[0], k), dim=2)  # [B, H, K, D]
            v = torch.cat((past[1], v), dim=2)
        return self.proj(self.context(q, k, v, allowed_B1SK)), (k, v)

    def split_heads(self, x_BSC: Tensor) -> Tensor:
        return torch.unflatten(x_BSC, -1, (self.n_head, -1)).transpose(1, 2)


class Mlp(nn.Module):
    """GELU(x·W_1 + b_1)·W_2 + b_2."""

    def __init__(self, config: AndreaConfig) -> None:
        super().__init__()
        self.fc = Linear(config.d_model, config.mlp_dim, bias=config.bias)
        self.gelu = Gelu()
        self.proj = Linear(config.mlp_dim, config.d_model, bias=config.bias)

    def forward(self, x_BSC: Tensor) -> Tensor:
        y_BSC: Tensor = self.proj(self.gelu(self.fc(x_BSC)))
        return y_BSC


class Block(nn.Module):
    """One pre-norm block: only a sublayer's input is normalised, never the residual stream."""

    def __init__(self, config: AndreaConfig) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(config)
        self.attn = Attention(config)
        self.attn_residual = Residual()
        self.ln_2 = LayerNorm(config)
        self.mlp = Mlp(config)
        self.mlp_residual = Residual()

    def forward(self, x_BSC: Tensor, past: KeyValue | None, allowed_B1SK: Tensor) -> tuple[Tensor, KeyValue]:
        delta_BSC, present = self.attn(self.ln_1(x_BSC), past, allowed_B1SK)
        x_BSC = self.attn_residual(x_BSC, delta_BSC)
        return self.mlp_residual(x_BSC, self.mlp(self.ln_2(x_BSC))), present


class Mask(nn.Module):
    """Which keys each query may see, ``[B, 1, S, K]`` bool: real tokens that are not in its future, and itself.

    "Itself" matters for padding alone: a padded query would otherwise see nothing, and softmax over nothing is NaN.
    """

    def forward(self, attention_mask_BK: Tensor, num_queries: int) -> Tensor:
        num_keys = attention_mask_BK.shape[1]
        key_K = torch.arange(num_keys, device=attention_mask_BK.device)
        query_S1 = (num_keys - num_queries + torch.arange(num_queries, device=attention_mask_BK.device)).unsqueeze(1)
        causal_SK = key_K <= query_S1
        real_B1K = (attention_mask_BK != 0).unsqueeze(1)
        return ((causal_SK & real_B1K) | (key_K == query_S1)).unsqueeze(1)


class Head(nn.Module):
    """x · token_embedᵀ: the same matrix as the embedding, no second copy; or, untied, a matrix of its own, like it."""

    def __init__(self, config: AndreaConfig) -> None:
        super().__init__()
        self.weight = None if config.tied_head else nn.Parameter(torch.empty(config.vocab_size, config.d_model))

    def forward(self, x_BSC: Tensor, table_VC: Tensor) -> Tensor:
        return torch.matmul(x_BSC, table_VC.transpose(0, 1))


class Andrea(nn.Module):
    """Token ids ``[B, S]`` in, logits ``[B, S, V]`` and the new cache out.

    ``attention_mask`` ``[B, P + S]`` is 1 for a token and 0 for padding; ``position_ids`` ``[B, S]`` count the tokens
    of a row, padding excluded. Left out, they mean a batch without padding. ``past`` holds a key and a value
    ``[B, H, P, D]`` for every block.
    """

    def __init__(self, config: AndreaConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embed = Embedding(config.vocab_size, config.d_model)
        self.position_embed = Embedding(config.n_ctx, config.d_model)
        self.embed_residual = Residual()
        self.mask = Mask()
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = LayerNorm(config)
        self.head = Head(config)

    @property
    def head_table(self) -> Tensor:
        """The matrix that the head multiplies with, ``[V, C]``."""
        return self.token_embed.weight if self.head.weight is None else self.head.weight

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past: list[KeyValue] | None = None,
    ) -> tuple[Tensor, list[KeyValue]]:
        num_tokens = input_ids.shape[1]
        num_past = 0 if past is None else past[0][0].shape[2]
        if attention_mask is None:
            attention_mask = input_ids.new_ones((input_ids.shape[0], num_past + num_tokens))
        if position_ids is None:
            position_ids = num_past + torch.arange(num_tokens, device=input_ids.device).unsqueeze(0)

        allowed_B1SK = self.mask(attention_mask, num_tokens)
        x_BSC = self.embed_residual(self.token_embed(input_ids), self.position_embed(position_ids))
        present: list[KeyValue] = []
        for index, block in enumerate(self.blocks):
            x_BSC, key_value = block(x_BSC, None if past is None else past[index], allowed_B1SK)
            present.append(key_value)
        return self.head(self.ln_f(x_BSC), self.head_table), present


def position_ids_from_mask(attention_mask_BK: Tensor, num_tokens: int) -> Tensor:
    """Positions ``[B, S]`` of the last S tokens of each row, padding excluded; a padded place gets 0."""
    return (attention_mask_BK.long().cumsum(dim=1) - 1).clamp(min=0)[:, -num_tokens:]


def build_model(config: AndreaConfig, *, seed: int | None = None) -> Andrea:
    """The model in eval mode; with a seed its weights are GPT-2's initialisation, otherwise they are left unset.

    Source: GPT-2 (Radford et al. 2019): N(0, 0.02), the two projections into the residual stream scaled by
    1/sqrt(2·n_layer), biases 0, LayerNorm gains 1. One generator, parameters in their own order: the same seed gives
    the same weights, and touches no global random state.
    """
    model = _unallocated(config)
    model.to_empty(device="cpu").eval().requires_grad_(False)
    if seed is None:
        return model
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            parameter.zero_()
        elif ".ln_" in f".{name}":
            parameter.fill_(1.0)
        else:
            scaled = name.endswith("proj.weight")
            parameter.normal_(0.0, 0.02 / math.sqrt(2 * config.n_layer) if scaled else 0.02, generator=generator)
    return model


def parameter_shapes(config: AndreaConfig) -> dict[str, tuple[int, ...]]:
    """Parameter name → shape, in the model's order; takes no memory for the parameters."""
    return {name: tuple(parameter.shape) for name, parameter in _unallocated(config).named_parameters()}


def _unallocated(config: AndreaConfig) -> Andrea:
    with torch.device("meta"):
        return Andrea(config)
