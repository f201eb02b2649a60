"""What an inspection can tell: data, and the lesson's parameter arithmetic: how many numbers a shape holds, counted the
way each public figure counts them. Owns no weights and reads no file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from andrea_model.config import PRESETS, AndreaConfig

WHAT_CAN_BE_INSPECTED = "give a checkpoint, an ONNX file, a TensorRT engine, or a bundle that andrea-export build made"

Kind = Literal["checkpoint", "published-checkpoint", "onnx", "engine", "plugin", "bundle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFact:
    """One input or output: its name, element type and dimensions (a str is dynamic)."""

    name: str
    dtype: str
    dims: tuple[int | str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Everything that could be told about one path without running it."""

    kind: Kind
    family: str | None = None
    """Of a checkpoint: whose names and order it has."""
    path: str
    num_bytes: int
    sha256: str | None
    """Of the file itself; None for a bundle, whose manifest holds one for each file."""
    config: AndreaConfig | None = None
    preset: str | None = None
    weights: str | None = None
    """Where the weights came from, in words."""
    trained: bool | None = None
    """None where the file does not say."""
    num_parameters: int | None = None
    """Counted from the tensors in the file, each once."""
    inputs: tuple[TensorFact, ...] = ()
    outputs: tuple[TensorFact, ...] = ()
    tensors: tuple[TensorFact, ...] = ()
    """A checkpoint's tensors, in the file's order."""
    num_nodes: Mapping[str, int] = field(default_factory=dict)
    """Operator type (with its domain where that is not ONNX's own) → nodes in the main graph."""
    made_by: Mapping[str, str] = field(default_factory=dict)
    """Producer, versions, precision, plugin: whatever the file or its manifest states."""
    notes: tuple[str, ...] = ()
    parts: tuple[Inspection, ...] = ()
    """A bundle's model, engines and plugin library."""

    @property
    def arithmetic(self) -> tuple[str, ...]:
        """The lesson's parameter arithmetic for this shape, and the count of what is really in the file."""
        if self.config is None:
            return ()
        lines = list(arithmetic_lines(self.config))
        if self.num_parameters is not None:
            expected = parameter_counts(self.config).exact
            agrees = "as computed" if self.num_parameters == expected else f"NOT the computed {expected:,}"
            lines.append(f"counted in this file: {self.num_parameters:,}, {agrees}")
        return tuple(lines)


LESSON_NAME_120M = 120_000_000
"""What the name ANDREA-120M rounds to. Source: the lesson on the transformer block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCounts:
    """Every group of parameters of one shape; each parameter is in exactly one of the groups that ``exact`` adds up."""

    w_1: int
    """One block's W_1 ``[d_model, mlp_dim]``, without bias."""
    w_2: int
    """One block's W_2 ``[mlp_dim, d_model]``, without bias."""
    attention_matrices: int
    """One block's qkv and projection matrices, without biases."""
    block_biases: int
    """One block's four biases: qkv, projection, b_1, b_2."""
    block_layer_norms: int
    """One block's gammas and betas, of two LayerNorms."""
    final_layer_norm: int
    token_embedding: int
    """``[vocab_size, d_model]``: input embedding, and output head at once where that is tied."""
    own_head: int
    """The head's own matrix, as large as the embedding; 0 where it is tied."""
    position_embedding: int
    n_layer: int

    @property
    def mlp_matrices(self) -> int:
        """One block's MLP without biases."""
        return self.w_1 + self.w_2

    @property
    def all_mlp_matrices(self) -> int:
        """The MLPs of all blocks, without biases."""
        return self.n_layer * self.mlp_matrices

    @property
    def trunk(self) -> int:
        """All blocks' matrices, without biases and LayerNorms."""
        return self.n_layer * (self.mlp_matrices + self.attention_matrices)

    @property
    def biases(self) -> int:
        """Every bias of every block."""
        return self.n_layer * self.block_biases

    @property
    def layer_norms(self) -> int:
        """Every gamma and beta: two LayerNorms a block and the final one."""
        return self.n_layer * self.block_layer_norms + self.final_layer_norm

    @property
    def exact(self) -> int:
        """What the model holds, in its variant."""
        embeddings = self.token_embedding + self.own_head + self.position_embedding
        return self.trunk + embeddings + self.biases + self.layer_norms

    @property
    def untied_matrices(self) -> int:
        """Counted as the public card counts ANDREA-120M: a head of its own, no biases, no LayerNorm parameters."""
        return self.trunk + 2 * self.token_embedding + self.position_embedding


def parameter_counts(config: AndreaConfig) -> ParameterCounts:
    """The counts of one shape, in its variant."""
    per_norm = config.d_model * (config.norm_parameters + config.norm_bias)
    return ParameterCounts(
        w_1=config.d_model * config.mlp_dim,
        w_2=config.mlp_dim * config.d_model,
        attention_matrices=4 * config.d_model**2,
        block_biases=(5 * config.d_model + config.mlp_dim) * config.bias,
        block_layer_norms=2 * per_norm,
        final_layer_norm=per_norm,
        token_embedding=config.vocab_size * config.d_model,
        own_head=0 if config.tied_head else config.vocab_size * config.d_model,
        position_embedding=config.n_ctx * config.d_model,
        n_layer=config.n_layer,
    )


def largest_count(config: AndreaConfig) -> int:
    """The largest count this shape gives in any variant: a head of its own, biases and LayerNorms."""
    return parameter_counts(replace(config.of_the_lessons, tied_head=False)).exact


def arithmetic_lines(config: AndreaConfig) -> tuple[str, ...]:
    """The arithmetic in sentences: the lesson's groups, the exact count, and how the public figures relate to it."""
    counts = parameter_counts(config)
    width, hidden, blocks = config.d_model, config.mlp_dim, config.n_layer
    tied = "one matrix for input and output; counted once for each"
    sharing = tied if config.tied_head else "and as much for the head's own matrix; together"
    lines = [
        f"W_1 [{width}, {hidden}] and W_2 [{hidden}, {width}]: {_both(counts.w_1)} each",
        f"MLP per block: {_both(counts.mlp_matrices)} without biases; "
        f"{blocks} blocks: {_both(counts.all_mlp_matrices)}",
        f"attention per block: {_both(counts.attention_matrices)} without biases",
        f"trunk ({blocks} blocks, matrices only): {_both(counts.trunk)}",
        f"token embedding {config.vocab_size} × {width}: {_both(counts.token_embedding)}, {sharing}: "
        f"{_both(2 * counts.token_embedding)}",
        f"position embedding {config.n_ctx} × {width}: {_both(counts.position_embedding)}",
        f"biases: {counts.biases:,}",
        f"LayerNorms (2 a block and the final one: {2 * blocks + 1}): {counts.layer_norms:,}",
        f"exact, with {config.variant}: {counts.exact:,}",
        f"with an untied head, no biases and no LayerNorm parameters: {counts.untied_matrices:,}",
    ]
    if config == PRESETS["andrea-120m"]:
        lines += [
            "the lesson rounds the groups above to 2.36M, 4.72M, 56.6M, a trunk of 85M and embeddings of 13M",
            f"the public card's 98.7M is that last figure: exact {counts.exact:,} + a second "
            f"{counts.token_embedding:,} for the head − biases {counts.biases:,} − LayerNorms {counts.layer_norms:,} = "
            f"{counts.untied_matrices:,}",
            "the lesson's name says about 120M: a rounded name, not a count; everything counted, head untied, is "
            f"{largest_count(config):,}; 120M is {LESSON_NAME_120M - counts.exact:,} more than the exact count",
        ]
    return tuple(lines)


def _both(number: int) -> str:
    """Exactly, and to the three digits a lesson rounds to: ``2,359,296 (2.36M)``."""
    if number < 1_000_000:
        return f"{number:,}"
    millions = f"{number / 1e6:.3g}"
    return f"{number:,} ({millions}M)"
