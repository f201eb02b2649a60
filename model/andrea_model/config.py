"""The family's shapes: one frozen configuration and its presets. Owns no weights and no maths."""

from __future__ import annotations

import reprlib
from dataclasses import asdict, dataclass, replace
from typing import Any

# Far above any model of this family, and low enough that a damaged file cannot ask for a loop or a sum without end.
_LARGEST = {
    "d_model": 1 << 16,
    "n_head": 1 << 12,
    "n_layer": 1 << 10,
    "n_ctx": 1 << 20,
    "vocab_size": 1 << 24,
    "mlp_dim": 1 << 18,
}

SWITCHES = ("tied_head", "bias", "norm_parameters")
"""The fields that make a variant of the architecture; all are true in ANDREA as its lessons tell it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AndreaConfig:
    """The shape of one ANDREA model, and which variant of the architecture it is.

    ``vocab_size`` is Harris segments (a power of two) + 256 bytes + 1. Raises ValueError on an impossible shape.

    | family | ``tied_head`` | ``bias`` | ``norm_parameters`` |
    |---|---|---|---|
    | ANDREA as in its lessons, GPT-2 | true | true | true |
    | nanoGPT with ``bias=False`` | true | false | true |
    | the published ANDREA checkpoints, as their count of parameters says | false | false | false |
    """

    d_model: int
    n_head: int
    n_layer: int
    n_ctx: int
    vocab_size: int
    mlp_dim: int
    layer_norm_epsilon: float = 1e-5
    tied_head: bool = True
    """The head multiplies with the token embedding; else with a matrix of its own, ``head.weight``."""
    bias: bool = True
    """Linear layers and LayerNorms add a bias."""
    norm_parameters: bool = True
    """LayerNorms multiply with a weight (and add a bias, if ``bias``); else they normalise and do nothing more."""

    def __post_init__(self) -> None:
        for name, largest in _LARGEST.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= largest:
                raise ValueError(f"{name} is {reprlib.repr(value)}, expected a whole number from 1 to {largest:,}")
        if self.d_model % self.n_head:
            raise ValueError(f"d_model {self.d_model} is not a multiple of n_head {self.n_head}")
        if type(self.layer_norm_epsilon) is not float or not 0 < self.layer_norm_epsilon < 1:
            raise ValueError(f"layer_norm_epsilon is {reprlib.repr(self.layer_norm_epsilon)}, expected between 0 and 1")
        for name in SWITCHES:
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name} is {reprlib.repr(getattr(self, name))}, expected true or false")

    @property
    def d_head(self) -> int:
        """The width of one attention head."""
        return self.d_model // self.n_head

    @property
    def of_the_lessons(self) -> AndreaConfig:
        """The same shape with every switch as the lessons have it."""
        return replace(self, tied_head=True, bias=True, norm_parameters=True)

    @property
    def norm_bias(self) -> bool:
        """Whether LayerNorms add a bias."""
        return self.bias and self.norm_parameters

    @property
    def variant(self) -> str:
        """In words: ``tied head, biases, norms with weight and bias`` for the architecture of the lessons."""
        norm = "weight and bias" if self.norm_bias else "a weight"
        return ", ".join(
            (
                "tied head" if self.tied_head else "head of its own",
                "biases" if self.bias else "no biases",
                f"norms with {norm}" if self.norm_parameters else "norms without parameters",
            )
        )

    def stated(self) -> dict[str, Any]:
        """What a file says of it: a switch only where it is off, as files were written before there were any."""
        return {name: value for name, value in asdict(self).items() if not (name in SWITCHES and value)}


# Sources: the public model card `russellbal/ANDREA` and the ANDREA lessons. Where they differ (the 12M vocabulary is
# 2305 on the card, 4353 in the lesson) the card wins, because it describes the file that is published; the 480M
# vocabulary is stated by neither and follows the 120M one. `andrea-tiny` exists for tests.
PRESETS: dict[str, AndreaConfig] = {
    "andrea-tiny": AndreaConfig(d_model=64, n_head=4, n_layer=2, n_ctx=1024, vocab_size=321, mlp_dim=256),
    "andrea-12m": AndreaConfig(d_model=384, n_head=12, n_layer=6, n_ctx=1024, vocab_size=2305, mlp_dim=1536),
    "andrea-120m": AndreaConfig(d_model=768, n_head=12, n_layer=12, n_ctx=1024, vocab_size=8449, mlp_dim=3072),
    "andrea-480m": AndreaConfig(d_model=1536, n_head=24, n_layer=16, n_ctx=1024, vocab_size=8449, mlp_dim=6144),
}
