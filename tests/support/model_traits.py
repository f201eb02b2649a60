"""What trained models have and random weights lack: outlier channels, and logits that almost tie."""

from __future__ import annotations

import copy

import torch

from andrea_model.model import Andrea

NUM_OUTLIERS, OUTLIER_FACTOR = 4, 30.0
TIE_DISTANCE = 1e-6


def with_outlier_channels(
    model: Andrea, *, num_channels: int = NUM_OUTLIERS, factor: float = OUTLIER_FACTOR, seed: int = 0
) -> Andrea:
    """A copy in which a few channels of every LayerNorm are ``factor`` times as large; the function stays the same.

    Gain and beta grow and the rows that read them shrink, so logits change by rounding alone, but every activation
    between has channels that dwarf the others, and every matrix rows of another scale: what a scale for a whole tensor
    cannot hold. Source: Dettmers et al. 2022 (LLM.int8()), section 4, on where such channels sit in trained models.
    """
    changed = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    parameters = dict(changed.named_parameters())
    for block in range(changed.config.n_layer):
        for norm, reader in (("ln_1", "attn.qkv"), ("ln_2", "mlp.fc")):
            channels = torch.randperm(changed.config.d_model, generator=generator)[:num_channels]
            parameters[f"blocks.{block}.{norm}.weight"][channels] *= factor
            parameters[f"blocks.{block}.{norm}.bias"][channels] *= factor
            parameters[f"blocks.{block}.{reader}.weight"][channels] /= factor
    return changed


def with_near_ties(model: Andrea, *, num_pairs: int = 32, distance: float = TIE_DISTANCE, seed: int = 0) -> Andrea:
    """A copy in which pairs of tokens have almost the same embedding and so, the head being tied, almost one logit.

    Each pair's second row is its first, off by ``distance`` of its norm: a top-1 decided by rounding.
    """
    changed = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    table = changed.token_embed.weight
    tokens = torch.randperm(table.shape[0], generator=generator)[: 2 * num_pairs].view(num_pairs, 2)
    for first, second in tokens.tolist():
        noise = torch.randn(table.shape[1], generator=generator)
        table[second] = table[first] + noise * (distance * table[first].norm() / noise.norm())
    return changed


def with_every_parameter_at_work(model: Andrea) -> Andrea:
    """The model, in which no bias is zero, no gain is one, and every matrix of a block matters."""
    generator = torch.Generator().manual_seed(2)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
        elif name.startswith("blocks."):
            parameter.mul_(8.0)  # GELU inputs reach past 2.7, where the tanh and erf forms differ most
    return model
