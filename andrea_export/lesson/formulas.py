"""What one block computes, formula by formula in the lesson's order, and where a backend's run shows each result."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea_export.core.names import BLOCK_LAYERS, present_names
from andrea_model.config import AndreaConfig

Array = npt.NDArray[Any]
Layers = Mapping[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """One formula, the layer that computes it, and how to take one token's result from a run; None if it has none."""

    name: str
    formula: str
    layer: str
    result: Callable[[Layers], Array | None]


def stream_layer(block: int) -> str:
    """The layer whose value is the residual stream that enters a block."""
    return f"blocks.{block - 1}.mlp_residual" if block else "embed_residual"


def lesson_layers(block: int) -> tuple[str, ...]:
    """The module paths a session must show for the lesson on one block."""
    return (stream_layer(block), *(f"blocks.{block}.{layer}" for layer in BLOCK_LAYERS))


def attention_weights_name(block: int) -> str:
    """The name under which a session returns softmax(q·kᵀ / sqrt(D)), ``[B, H, S, K]``, where it can."""
    return f"blocks.{block}.attn.weights"


def formulas(config: AndreaConfig, position: int, block: int) -> list[Formula]:
    """A block's formulas for the token at one position."""
    inside, heads, width = f"blocks.{block}", config.n_head, config.d_head

    def of_layer(layer: str) -> Callable[[Layers], Array | None]:
        return lambda layers: layers[layer][0, position] if layer in layers else None

    def of_qkv(index: int) -> Callable[[Layers], Array | None]:
        def result(layers: Layers) -> Array | None:
            if f"{inside}.attn.qkv" in layers:
                return np.split(layers[f"{inside}.attn.qkv"][0, position], 3)[index].reshape(heads, width)
            name = ("", *present_names(block))[index]  # an engine shows its new keys and values, never its q
            return layers[name][0, :, position] if name in layers else None

        return result

    def attention_weights(layers: Layers) -> Array | None:
        name = attention_weights_name(block)
        if name in layers:
            return layers[name][0, :, position, : position + 1]
        if f"{inside}.attn.qkv" not in layers:
            return None
        q, k, _ = np.split(layers[f"{inside}.attn.qkv"][0, : position + 1].astype(np.float64), 3, axis=-1)
        q_HD, k_KHD = q[position].reshape(heads, width), k.reshape(-1, heads, width)
        scores_HK = np.einsum("hd,khd->hk", q_HD, k_KHD) / np.sqrt(width)
        weights_HK: Array = np.exp(scores_HK - scores_HK.max(axis=-1, keepdims=True))
        weights_HK /= weights_HK.sum(axis=-1, keepdims=True)
        return weights_HK

    def line(name: str, formula: str, layer: str, result: Callable[[Layers], Array | None] | None = None) -> Formula:
        path = layer if layer == stream_layer(block) else f"{inside}.{layer}"
        return Formula(name=name, formula=formula, layer=path, result=result or of_layer(path))

    return [
        line("residual stream in", "x", stream_layer(block)),
        line("LayerNorm", "a = LayerNorm(x)", "ln_1"),
        line("q", "q = a·W_q + b_q", "attn.qkv", of_qkv(0)),
        line("k", "k = a·W_k + b_k", "attn.qkv", of_qkv(1)),
        line("v", "v = a·W_v + b_v", "attn.qkv", of_qkv(2)),
        line("attention weights", "w = softmax(q·kᵀ / sqrt(d_head))", "attn.weights", attention_weights),
        line("heads' context", "c = w·v", "attn.context"),
        line("attention delta", "d = c·W_o + b_o", "attn.proj"),
        line("residual add", "x = x + d", "attn_residual"),
        line("LayerNorm", "m = LayerNorm(x)", "ln_2"),
        line("W_1", "h = m·W_1 + b_1", "mlp.fc"),
        line("GELU", "g = GELU(h)", "mlp.gelu"),
        line("W_2 (MLP delta)", "y = g·W_2 + b_2", "mlp.proj"),
        line("residual add", "x = x + y", "mlp_residual"),
    ]
