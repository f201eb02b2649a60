"""The recipe's part that is ``ort-cpu``'s: how its graphs are quantised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict

from andrea_export.targets.ort_cpu.files import Int8Decode


@dataclass(frozen=True, slots=True, kw_only=True)
class OrtCpu:
    """How the graphs for onnxruntime's CPU provider are quantised."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    int8_decode: Int8Decode = "dynamic"
    """What int8 layers decode with. dynamic: DynamicQuantizeMatMul, as for prompts: int8 then has one graph and one
    copy of the weights. blockwise: MatMulNBits, with a copy of its own; faster on processors with AVX-512 VNNI. Their
    divergence from fp32 is about the same (docs/measurements/quantization.md)."""
    int8_keep: tuple[str, ...] = ("blocks.0",)
    """Linear layers that stay fp32 in int8: ``blocks.3.mlp.proj``, ``blocks.3`` for all of a block, or ``mlp.proj`` for
    that of every block. On a trained model the first block makes more than half of int8's divergence from fp32
    (docs/measurements/quantization.md)."""
    int8_scaled_rows: tuple[str, ...] = ("mlp.proj",)
    """int8 layers whose tokens are brought to one size before they are rounded on one range; named as above. Step by
    step, where a token is alone, it changes nothing (docs/measurements/cpu-runtime.md)."""
    int4_block: Literal[32, 64, 128] = 128
    """How many 4-bit weights share a scale, at most: a narrower matrix has narrower blocks."""
    int4_keep: tuple[str, ...] = ("attn.qkv",)
    """Linear layers that are int8 in int4. On a trained model ``attn.qkv``, a quarter of the weights, makes two fifths
    of int4's divergence from fp32, and wide blocks cost less than it saves (docs/measurements/quantization.md)."""
