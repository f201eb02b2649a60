"""The recipe's part that is ``ort-cpu``'s: how its graphs are quantised."""

from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict


@dataclass(frozen=True, slots=True, kw_only=True)
class OrtCpu:
    """How the graphs for onnxruntime's CPU provider are quantised."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    int8_keep: tuple[str, ...] = ()
    """Linear layers that stay fp32 in int8: ``blocks.3.mlp.proj``, ``blocks.3`` for all of a block, or ``mlp.proj`` for
    that of every block."""
    int4_block: Literal[32, 64, 128] = 128
    """How many 4-bit weights share a scale, at most: a narrower matrix has narrower blocks."""
    int4_keep: tuple[str, ...] = ("attn.qkv", "attn.proj")
    """Linear layers that are int8 in int4. On a trained model attention's, a third of the weights, make more than half
    of int4's divergence from fp32, and wide blocks cost less than they save (docs/measurements/quantization.md)."""
