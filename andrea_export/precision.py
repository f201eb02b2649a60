"""Precisions, one row each, and the table of what is half in them: the rule that ``passes.mixed_precision`` applies.

The rule. In fp16 and bf16 the two sublayers of every block, ``attn`` and ``mlp`` with everything below them, compute
and store in the half type: their weights and biases, their activations, and the KV cache. Everything else is fp32:
token and position embeddings, the residual stream, every LayerNorm, the final norm, the tied head and the logits. A
Cast stands at each border and nowhere else: after ``ln_1`` and ``ln_2`` going in, after ``attn.proj`` and
``mlp.proj`` coming out.

Why there. The residual stream grows from block to block and a LayerNorm squares it: an entry of 300 has a square of
90 000, above fp16's largest value, 65 504. What a sublayer reads is normalised, so its own sums stay small. The head
multiplies with the token embedding, which is fp32 for the embedding's sake: sharing it keeps the tied matrix stored
once.

Inside the sublayers two steps would still overflow or lose accuracy in half, and are fp32 within one operation:
the softmax with its scores (one Attention node, whose kernels accumulate and normalise in fp32), and the GELU (x³ of an
entry of 300 is 2.7e7), which reads and writes half but computes in fp32 in the plugin, in the function body and in the
native twin alike.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from andrea_export.recipe import PrecisionName

HALF_MODULES: tuple[str, ...] = ("attn", "mlp")
"""Modules of a block, by path inside the block, that are half with everything below them."""

_IN_BLOCK = re.compile(r"blocks\.\d+\.(?P<inside>.+)")
_CACHE = re.compile(r"(past_key_values|present)\.\d+\.(key|value)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """One precision; types are keys of ``dtypes.DTYPES``."""

    name: PrecisionName
    compute_dtype: str
    """What ``HALF_MODULES`` compute and store in, and what the KV cache is stored in."""

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
        return self.compute_dtype if is_half else "fp32"


PRECISIONS: dict[PrecisionName, Precision] = {
    "fp32": Precision(name="fp32", compute_dtype="fp32"),
    "fp16": Precision(name="fp16", compute_dtype="fp16"),
    "bf16": Precision(name="bf16", compute_dtype="bf16"),
}
