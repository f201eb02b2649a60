"""The family's shapes: one frozen configuration and its presets. Owns no weights and no maths."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass

# Far above any model of this family, and low enough that a damaged file cannot ask for a loop or a sum without end.
_LARGEST = {
    "d_model": 1 << 16,
    "n_head": 1 << 12,
    "n_layer": 1 << 10,
    "n_ctx": 1 << 20,
    "vocab_size": 1 << 24,
    "mlp_dim": 1 << 18,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AndreaConfig:
    """The shape of one ANDREA model.

    ``vocab_size`` is Harris segments (a power of two) + 256 bytes + 1. Raises ValueError on an impossible shape.
    """

    d_model: int
    n_head: int
    n_layer: int
    n_ctx: int
    vocab_size: int
    mlp_dim: int
    layer_norm_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        for name, largest in _LARGEST.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= largest:
                raise ValueError(f"{name} is {reprlib.repr(value)}, expected a whole number from 1 to {largest:,}")
        if self.d_model % self.n_head:
            raise ValueError(f"d_model {self.d_model} is not a multiple of n_head {self.n_head}")
        if type(self.layer_norm_epsilon) is not float or not 0 < self.layer_norm_epsilon < 1:
            raise ValueError(f"layer_norm_epsilon is {reprlib.repr(self.layer_norm_epsilon)}, expected between 0 and 1")

    @property
    def d_head(self) -> int:
        """The width of one attention head."""
        return self.d_model // self.n_head


# Sources: the public model card `russellbal/ANDREA` and the ANDREA lessons. Where they differ (the 12M vocabulary is
# 2305 on the card, 4353 in the lesson) the card wins, because it describes the file that is published; the 480M
# vocabulary is stated by neither and follows the 120M one. `andrea-tiny` exists for tests.
PRESETS: dict[str, AndreaConfig] = {
    "andrea-tiny": AndreaConfig(d_model=64, n_head=4, n_layer=2, n_ctx=1024, vocab_size=321, mlp_dim=256),
    "andrea-12m": AndreaConfig(d_model=384, n_head=12, n_layer=6, n_ctx=1024, vocab_size=2305, mlp_dim=1536),
    "andrea-120m": AndreaConfig(d_model=768, n_head=12, n_layer=12, n_ctx=1024, vocab_size=8449, mlp_dim=3072),
    "andrea-480m": AndreaConfig(d_model=1536, n_head=24, n_layer=16, n_ctx=1024, vocab_size=8449, mlp_dim=6144),
}
