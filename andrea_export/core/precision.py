"""THE table of precisions, one row each, and the rule of what is half in them, which ``mixed_precision`` applies.

Every list of names, choice on the command line and type in a file is derived from the rows.

The rule. In fp16 and bf16 the two sublayers of every block, ``attn`` and ``mlp`` with everything below them, compute
and store in the half type: their weights and biases, their activations, and the KV cache. Everything else is fp32:
token and position embeddings, the residual stream, every LayerNorm, the final norm, the tied head and the logits. A
Cast stands at each border and nowhere else: after ``ln_1`` and ``ln_2`` going in, after ``attn.proj`` and ``mlp.proj``
coming out.

Why there. The residual stream grows from block to block and a LayerNorm squares it: an entry of 300 has a square of
90 000, above fp16's largest value, 65 504. What a sublayer reads is normalised, so its own sums stay small. The head
multiplies with the token embedding, which is fp32 for the embedding's sake: sharing it keeps the tied matrix stored
once.

Two steps inside the sublayers would still overflow fp16, and are fp32 within:

- The scores q·kᵀ and their softmax: 64 products of entries of 300 are 5.8 million. In fp16 the attention is spelled out
  with fp32 scores and softmax (``DecomposeAttention``), because an Attention node leaves the type of its sums
  to the kernel, and a fused fp16 kernel may keep them in fp16. bf16 has fp32's range, so there the node stays one;
  its kernels add up in fp32.
- The GELU: x³ of an entry of 300 is 27 million. It reads and writes half but computes in fp32, in the plugin (by its
  kernel) and in the native twin (by Casts) alike.

Source for the fused fp16 kernel: https://github.com/tier4/autoware-ml/pull/95 (its running sum passed 65 504).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

HALF_MODULES: tuple[str, ...] = ("attn", "mlp")
"""Modules of a block, by path inside the block, that are half with everything below them."""

_IN_BLOCK = re.compile(r"blocks\.\d+\.(?P<inside>.+)")
_CACHE = re.compile(r"(past_key_values|present)\.\d+\.(key|value)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """One precision; types are keys of ``dtypes.DTYPES``."""

    name: str
    compute_dtype: str = "fp32"
    """What ``HALF_MODULES`` compute and store in, and what the KV cache is stored in."""
    rest_dtype: str = "fp32"
    """What everything else computes and stores in."""
    in_engines: bool = False
    """Whether engines are built in it."""
    in_ort_cpu: bool = False
    """Whether there are graphs in it for onnxruntime's CPU kernels."""
    has_budgets: bool = False
    """Whether torch, run in it, says what error a candidate may have. fp64 is the truth that errors are measured
    against; a graph with quantised weights brings the torch model that rounds as it does."""
    is_truth: bool = False
    """Whether it is what errors are measured against."""
    attention_node: bool = True
    """Whether attention may stay one Attention node, whose kernels choose the type of their sums."""

    @property
    def cache_dtype(self) -> str:
        """The type of every past and present key and value."""
        return self.compute_dtype

    def module_dtype(self, module: str) -> str:
        """The float type of what a module, named by its path, computes and stores: ``blocks.3.mlp.gelu`` → ``fp16``.

        A layer's value has the type of its module, a past or present key or value that of the cache.
        """
        if _CACHE.fullmatch(module):
            return self.cache_dtype
        match = _IN_BLOCK.fullmatch(module)
        inside = match["inside"] if match else ""
        is_half = any(inside == half or inside.startswith(f"{half}.") for half in HALF_MODULES)
        return self.compute_dtype if is_half else self.rest_dtype

    def layer_dtype(self, layer: str) -> str:
        """The type of a layer's value, the mask's included."""
        return "bool" if layer == "mask" else self.module_dtype(layer)


PRECISIONS: dict[str, Precision] = {
    row.name: row
    for row in (
        Precision(name="fp64", compute_dtype="fp64", rest_dtype="fp64", is_truth=True),
        Precision(name="fp32", in_engines=True, in_ort_cpu=True, has_budgets=True),
        Precision(name="fp16", compute_dtype="fp16", in_engines=True, has_budgets=True, attention_node=False),
        Precision(name="bf16", compute_dtype="bf16", in_engines=True, has_budgets=True),
        # What an fp32 engine is where it may use TF32: stored as fp32, with budgets of its own.
        Precision(name="tf32", has_budgets=True),
        Precision(name="int8", in_ort_cpu=True),
        Precision(name="int4", in_ort_cpu=True),
    )
}


def _names(belongs: Callable[[Precision], bool]) -> tuple[str, ...]:
    return tuple(row.name for row in PRECISIONS.values() if belongs(row))


ENGINE_PRECISIONS = _names(lambda row: row.in_engines)
ORT_PRECISIONS = _names(lambda row: row.in_ort_cpu)
BUILT_PRECISIONS = _names(lambda row: row.in_engines or row.in_ort_cpu)
JUDGED_PRECISIONS = _names(lambda row: row.has_budgets)
"""Every precision that budgets can be derived for."""

if TYPE_CHECKING:
    EnginePrecision = str
    OrtPrecision = str
    BuiltPrecision = str
else:  # what a file may say, checked by whoever reads it
    EnginePrecision = Literal[ENGINE_PRECISIONS]
    OrtPrecision = Literal[ORT_PRECISIONS]
    BuiltPrecision = Literal[BUILT_PRECISIONS]
