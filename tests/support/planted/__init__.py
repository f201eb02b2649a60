"""Faults to plant in an exported ANDREA graph: what a comparison must catch, and in which layer it must see it.

One function a fault: it changes an ONNX graph (weights loaded) in place at one layer, by one size where it has any.
``FAULTS`` lists them with the layers and sizes they are planted at; ``plantings`` is every combination for a model.

    edit     the changes faults are made of
    weights  in what the file stores
    graph    in what its blocks' nodes do
    ends     in what they are given, and in the head
    values   in what a value is stored as
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import onnx

from andrea_model.config import AndreaConfig
from support.planted import ends, graph, values, weights

Plant = Callable[[onnx.ModelProto, str, float], None]

LINEAR = ("attn.qkv", "attn.proj", "mlp.fc", "mlp.proj")
NORMS = ("ln_1", "ln_2")
RESIDUALS = ("attn_residual", "mlp_residual")
STORED = ("attn.context", "mlp.gelu", "mlp_residual")
ONE_SIZE = (0.0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A kind of fault. ``layers`` are inside a block, or of the whole model where ``in_block`` is False.

    ``where``: the variants of the architecture that have what it changes.
    """

    name: str
    plant: Plant
    layers: tuple[str, ...]
    sizes: tuple[float, ...] = ONE_SIZE
    in_block: bool = True
    where: Callable[[AndreaConfig], bool] = lambda _: True


@dataclass(frozen=True, slots=True, kw_only=True)
class Planting:
    """One fault in one place, by one size; ``layer`` is where a comparison must see it first."""

    fault: str
    layer: str
    size: float
    plant: Plant

    def __str__(self) -> str:
        return f"{self.fault} in {self.layer}{f' by {self.size:g}' if self.size else ''}"

    def into(self, model: onnx.ModelProto) -> None:
        """Changes the model in place."""
        self.plant(model, self.layer, self.size)


def plantings(config: AndreaConfig, blocks: Sequence[int], faults: Sequence[Fault] | None = None) -> Iterator[Planting]:
    """Every fault (of ``FAULTS``, or those given) at every layer of the given blocks, by every size.

    A fault of a whole model is planted once for each size.
    """
    for fault in FAULTS if faults is None else faults:
        if not fault.where(config):
            continue
        prefixes = [f"blocks.{block}." for block in blocks] if fault.in_block else [""]
        for prefix in prefixes:
            for layer in fault.layers:
                name = _present(prefix, layer)
                for size in fault.sizes:
                    yield Planting(fault=fault.name, layer=name, size=size, plant=fault.plant)


def _present(prefix: str, layer: str) -> str:
    """``key`` and ``value`` of a block are its graph outputs; every other layer is below the block."""
    if layer in ("key", "value"):
        return f"{prefix.replace('blocks.', 'present.')}{layer}"
    return prefix + layer


FAULTS: tuple[Fault, ...] = (
    Fault(name="weight scaled", plant=weights.scaled, layers=LINEAR, sizes=(1.1, 1.001)),
    Fault(name="weight element + x", plant=weights.element_added, layers=LINEAR, sizes=(1.0, 0.01)),
    Fault(name="weight rounded to bf16", plant=weights.rounded_to_bf16, layers=LINEAR),
    Fault(name="weight quantised per tensor", plant=weights.quantised_per_tensor, layers=LINEAR, sizes=(8, 4)),
    Fault(name="weight quantised per column", plant=weights.quantised_per_column,
          layers=("mlp.fc", "mlp.proj"), sizes=(8,)),
    Fault(name="weight transposed", plant=weights.transposed, layers=("attn.proj",)),
    Fault(name="weight rows swapped", plant=weights.rows_swapped, layers=LINEAR),
    Fault(name="weight columns swapped", plant=weights.columns_swapped, layers=LINEAR),
    Fault(name="weight row zeroed", plant=weights.row_zeroed, layers=LINEAR),
    Fault(name="weight sign lost", plant=weights.sign_lost, layers=("mlp.fc",)),
    Fault(name="weight outliers clipped", plant=weights.outliers_clipped, layers=LINEAR),
    Fault(name="weight NaN", plant=weights.made_nan, layers=("mlp.proj",)),
    Fault(name="weight of the next block", plant=weights.of_another_block, layers=("attn.qkv", "mlp.proj")),
    Fault(name="bias dropped", plant=weights.bias_dropped, layers=LINEAR, where=lambda c: c.bias),
    Fault(name="bias shifted", plant=weights.bias_shifted, layers=LINEAR, sizes=(0.01,), where=lambda c: c.bias),
    Fault(name="gain dropped", plant=weights.gain_dropped, layers=NORMS,
          where=lambda c: c.norm_parameters),
    Fault(name="gains of the other norm", plant=weights.gain_of_other_norm, layers=("ln_1",),
          where=lambda c: c.norm_parameters),
    Fault(name="beta dropped", plant=weights.bias_dropped, layers=NORMS, where=lambda c: c.norm_bias),
    Fault(name="epsilon changed", plant=graph.epsilon_changed, layers=NORMS, sizes=(1e-2, 1e-12)),
    Fault(name="norm without its mean", plant=graph.norm_without_mean, layers=NORMS),
    Fault(name="norm skipped", plant=graph.norm_skipped, layers=NORMS),
    Fault(name="erf for tanh", plant=graph.erf_for_tanh, layers=("mlp.gelu",)),
    Fault(name="sigmoid for tanh", plant=graph.sigmoid_gelu, layers=("mlp.gelu",)),
    Fault(name="ReLU for GELU", plant=graph.relu_for_gelu, layers=("mlp.gelu",)),
    Fault(name="attention scale changed", plant=graph.attention_scaled, layers=("attn.context",), sizes=(2.0, 1.01)),
    Fault(name="attention softcap", plant=graph.attention_softcapped, layers=("attn.context",), sizes=(20.0,)),
    Fault(name="attention mask dropped", plant=graph.mask_dropped, layers=("attn.context",)),
    Fault(name="attention mask transposed", plant=graph.mask_transposed, layers=("attn.context",)),
    Fault(name="heads of the query permuted", plant=graph.query_heads_permuted, layers=("attn.context",)),
    Fault(name="heads of the output permuted", plant=graph.output_heads_permuted, layers=("attn.context",)),
    Fault(name="key and value exchanged", plant=graph.key_and_value_exchanged, layers=("attn.context",)),
    Fault(name="stale cache", plant=graph.stale_cache, layers=("key", "value")),
    Fault(name="past forgotten", plant=graph.past_forgotten, layers=("key", "value")),
    Fault(name="cache in fp16", plant=values.through_fp16, layers=("key", "value")),
    Fault(name="residual skipped", plant=graph.residual_skipped, layers=RESIDUALS),
    Fault(name="delta added twice", plant=graph.delta_added_twice, layers=RESIDUALS),
    Fault(name="residual of an earlier stream", plant=graph.residual_of_embedding, layers=("mlp_residual",)),
    Fault(name="stored as fp16", plant=values.through_fp16, layers=STORED),
    Fault(name="stored as bf16", plant=values.through_bf16, layers=STORED),
    Fault(name="stored as int8", plant=values.through_int8, layers=STORED),
    Fault(name="fp16 overflow", plant=values.overflowing_fp16, layers=("attn.context", "mlp.gelu"), sizes=(1e6,)),
    Fault(name="clipped", plant=values.clipped, layers=("mlp.fc", "mlp_residual"), sizes=(0.5,)),
    Fault(name="one channel shifted", plant=values.channel_shifted,
          layers=("ln_1", "attn.qkv", "mlp_residual"), sizes=(1e-3,)),
    Fault(name="last position zeroed", plant=values.last_position_zeroed, layers=("attn.proj", "mlp.gelu")),
    Fault(name="tokens clipped", plant=ends.tokens_clipped, layers=("token_embed",), sizes=(200,), in_block=False),
    Fault(name="tokens off by one", plant=ends.tokens_off_by_one, layers=("token_embed",), in_block=False),
    Fault(name="embedding rows swapped", plant=ends.embedding_rows_swapped,
          layers=("token_embed", "position_embed"), in_block=False),
    Fault(name="embedding in bf16", plant=values.through_bf16,
          layers=("token_embed", "position_embed"), in_block=False),
    Fault(name="positions off by one", plant=ends.positions_off_by_one, layers=("position_embed",), in_block=False),
    Fault(name="positions clipped", plant=ends.positions_clipped,
          layers=("position_embed",), sizes=(31,), in_block=False),
    Fault(name="positions count padding", plant=ends.positions_count_padding,
          layers=("position_embed",), in_block=False),
    Fault(name="mask off by one", plant=ends.mask_off_by_one, layers=("mask",), in_block=False),
    Fault(name="mask forgets padding", plant=ends.mask_forgets_padding, layers=("mask",), in_block=False),
    Fault(name="mask sees the future", plant=ends.mask_sees_future, layers=("mask",), in_block=False),
    Fault(name="position added twice", plant=graph.position_added_twice, layers=("embed_residual",), in_block=False),
    Fault(name="final norm's epsilon changed", plant=graph.epsilon_changed,
          layers=("ln_f",), sizes=(1e-2,), in_block=False),
    Fault(name="final norm without its mean", plant=graph.norm_without_mean, layers=("ln_f",), in_block=False),
    Fault(name="final norm's gain dropped", plant=weights.gain_dropped, layers=("ln_f",), in_block=False,
          where=lambda c: c.norm_parameters),
    Fault(name="logits scaled", plant=values.scaled, layers=("logits",), sizes=(1.01, 1.0001), in_block=False),
    Fault(name="logits in fp16", plant=values.through_fp16, layers=("logits",), in_block=False),
    Fault(name="logits of one token zeroed", plant=values.channel_zeroed, layers=("logits",), in_block=False),
    Fault(name="head not tied", plant=ends.head_not_tied, layers=("logits",), in_block=False,
          where=lambda c: c.tied_head),
)  # fmt: skip

OF_VARIANTS: tuple[Fault, ...] = (
    Fault(name="a bias where there is none", plant=values.channel_shifted,
          layers=LINEAR, sizes=(0.01,), where=lambda c: not c.bias),
    Fault(name="a gain where there is none", plant=values.scaled,
          layers=NORMS, sizes=(1.001,), where=lambda c: not c.norm_parameters),
    Fault(name="final norm skipped", plant=graph.norm_skipped, layers=("ln_f",), in_block=False),
    Fault(name="head tied", plant=ends.head_tied, layers=("logits",), in_block=False, where=lambda c: not c.tied_head),
    Fault(name="head's rows swapped", plant=ends.head_rows_swapped,
          layers=("logits",), in_block=False, where=lambda c: not c.tied_head),
)  # fmt: skip
"""Those of another architecture than the lessons': what it leaves out put in, what is its own exchanged."""

SUBTLE: tuple[Fault, ...] = (
    Fault(name="weight scaled", plant=weights.scaled, layers=LINEAR, sizes=(1.00001,)),
    Fault(name="weight element + x", plant=weights.element_added, layers=LINEAR, sizes=(1e-4,)),
    Fault(name="bias shifted", plant=weights.bias_shifted, layers=LINEAR, sizes=(1e-5,), where=lambda c: c.bias),
    Fault(name="epsilon changed", plant=graph.epsilon_changed, layers=NORMS, sizes=(1.1e-5,)),
    Fault(name="attention scale changed", plant=graph.attention_scaled, layers=("attn.context",), sizes=(1.0001,)),
    Fault(name="one channel shifted", plant=values.channel_shifted, layers=("ln_1", "mlp_residual"), sizes=(1e-5,)),
    Fault(name="logits scaled", plant=values.scaled, layers=("logits",), sizes=(1.00001,), in_block=False),
)
"""The same kinds so small that they are near, or below, what rounding does."""
