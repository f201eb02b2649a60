"""The names and shapes of everything that crosses a boundary: graph inputs, graph outputs and layers, in model order;
and the keys under which this project's files say what they hold.

One list of names serves the torch hooks, the ONNX values, the engines' tensors and every report.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from andrea_model.config import AndreaConfig

# A str is a dynamic dimension: batch, sequence (tokens now), past (tokens cached), total = past + sequence.
Dim = int | str

BLOCK_LAYERS = (
    "ln_1",
    "attn.qkv",
    "attn.context",
    "attn.proj",
    "attn_residual",
    "ln_2",
    "mlp.fc",
    "mlp.gelu",
    "mlp.proj",
    "mlp_residual",
)

# The inputs of a graph with a shared cache, in the place of ``attention_mask``.
SEQLENS = "seqlens_k"
"""int32 ``[B]``: each row's real tokens in all, less one."""
TOTAL = "total_sequence_length"
"""int32 ``[1]``: the longest row's tokens in all."""
KEEP = "logits_to_keep"
"""int64 ``[1]``: how many of the last positions get logits, 1 to S."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor at a boundary: its name, its type (a key of ``dtypes.DTYPES``) and its dimensions."""

    name: str
    dtype: str
    dims: tuple[Dim, ...]


def graph_inputs(config: AndreaConfig, cache_dtype: str = "fp32") -> tuple[TensorSpec, ...]:
    """The inputs of the KV-cache graph, in order, under the ecosystem's names."""
    cache_dims = ("batch", config.n_head, "past", config.d_head)
    return (
        TensorSpec(name="input_ids", dtype="int64", dims=("batch", "sequence")),
        TensorSpec(name="attention_mask", dtype="int64", dims=("batch", "total")),
        TensorSpec(name="position_ids", dtype="int64", dims=("batch", "sequence")),
        *(
            TensorSpec(name=f"past_key_values.{index}.{part}", dtype=cache_dtype, dims=cache_dims)
            for index in range(config.n_layer)
            for part in ("key", "value")
        ),
    )


def graph_outputs(config: AndreaConfig, cache_dtype: str = "fp32") -> tuple[TensorSpec, ...]:
    """The outputs of the KV-cache graph, in order."""
    cache_dims = ("batch", config.n_head, "total", config.d_head)
    return (
        TensorSpec(name="logits", dtype="fp32", dims=("batch", "sequence", config.vocab_size)),
        *(
            TensorSpec(name=name, dtype=cache_dtype, dims=cache_dims)
            for index in range(config.n_layer)
            for name in present_names(index)
        ),
    )


def present_names(block: int) -> tuple[str, str]:
    """The new key and value of one block."""
    return f"present.{block}.key", f"present.{block}.value"


def layer_names(config: AndreaConfig) -> Iterator[str]:
    """Every layer that is compared, in model order: module paths, plus each present key and value, plus ``logits``."""
    yield from ("mask", "token_embed", "position_embed", "embed_residual")
    for index in range(config.n_layer):
        for layer in BLOCK_LAYERS:
            yield f"blocks.{index}.{layer}"
            if layer == "attn.qkv":
                yield from present_names(index)
    yield from ("ln_f", "logits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Consecutive layers that a comparison runs and forgets together: the embedding, one block, or the head."""

    name: str
    layers: tuple[str, ...]
    block: int | None = None


def segments(config: AndreaConfig) -> tuple[Segment, ...]:
    """``layer_names`` in model order, cut before the first block and after every block."""
    names = tuple(layer_names(config))
    first, per_block = names.index("blocks.0.ln_1"), len(BLOCK_LAYERS) + 2
    return (
        Segment(name="embed", layers=names[:first]),
        *(
            Segment(
                name=f"blocks.{index}",
                layers=names[first + index * per_block : first + (index + 1) * per_block],
                block=index,
            )
            for index in range(config.n_layer)
        ),
        Segment(name="head", layers=names[first + config.n_layer * per_block :]),
    )


def gelu_layers(config: AndreaConfig) -> tuple[str, ...]:
    """The module paths of the GELUs, in model order."""
    return tuple(f"blocks.{index}.mlp.gelu" for index in range(config.n_layer))


CONFIG_KEY = "andrea.config"
"""In a checkpoint and in a graph: the model's shape, as JSON."""
WEIGHTS_KEY = "andrea.weights"
"""In both: where the weights came from, in words."""
GUESS_KEY = "andrea.guess"
"""In a checkpoint: what was assumed when it was made and nothing proves, in words."""
ORIGIN_KEY = "andrea.origin"
"""In a graph: the same as JSON (``WeightsOrigin``)."""
TRACE_KEY = "andrea.trace"
"""In a recorded trace: its header, as JSON."""
MODULE_KEY = "andrea.module"
"""On a node: the path of the torch module it belongs to."""
