"""Files without names: tensors of one type, one after the other, in an order that something else states."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from andrea_export.core.errors import CheckpointError
from andrea_export.weights.readers.base import Spelling
from andrea_export.weights.readers.stored import FLOAT_TYPES, StoredTensor
from andrea_model.config import AndreaConfig

QKV = tuple(f"blocks.N.attn.{part}" for part in "qkv")
APART = Spelling(modules={"blocks.N.attn.qkv": QKV})
"""The model's own names, but q, k and v each a matrix."""
_DIMS = "V: the vocabulary, C: d_model, F: mlp_dim, T: the context"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tensor of an order. A name with ``N`` for the block stands for one of every block."""

    name: str
    shape: tuple[int | str, ...]
    """Numbers, or V (vocabulary), C (d_model), F (mlp_dim) and T (context)."""


def expanded(order: Sequence[Entry], config: AndreaConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor's name and shape: neighbours with ``N`` in their names are repeated together, block by block.

    Raises: ValueError for a letter that stands for nothing.
    """
    sizes = {"V": config.vocab_size, "C": config.d_model, "F": config.mlp_dim, "T": config.n_ctx}
    at = 0
    while at < len(order):
        end = at
        while end < len(order) and ".N." in order[end].name:
            end += 1
        group = order[at : max(end, at + 1)]
        for block in range(config.n_layer) if end > at else (0,):
            for entry in group:
                if unknown := [size for size in entry.shape if isinstance(size, str) and size not in sizes]:
                    raise ValueError(
                        f"{entry.name} has dimension {json.dumps(unknown[0])}, expected a number, or {_DIMS}"
                    )
                yield (
                    entry.name.replace(".N.", f".{block}."),
                    tuple(sizes[size] if isinstance(size, str) else size for size in entry.shape),
                )
        at = max(end, at + 1)


def placed(
    shapes: Iterator[tuple[str, tuple[int, ...]]], file: Path, *, offset: int, dtype: str
) -> tuple[dict[str, StoredTensor], int]:
    """The tensors from an offset on, and where they end. Raises: CheckpointError for a name that comes twice."""
    found: dict[str, StoredTensor] = {}
    for name, shape in shapes:
        if name in found:
            raise CheckpointError(f"checkpoint {file}: its order names {name} twice")
        found[name] = StoredTensor(file=file, offset=offset, dtype=dtype, shape=shape)
        offset += math.prod(shape) * FLOAT_TYPES[dtype]
    return found, offset


def cut_rows(tensors: Mapping[str, StoredTensor], name: str, num_rows: int) -> dict[str, StoredTensor]:
    """The tensors, of one of them the first rows alone: those behind are padding."""
    tensor = tensors[name]
    kept = StoredTensor(file=tensor.file, offset=tensor.offset, dtype=tensor.dtype, shape=(num_rows, *tensor.shape[1:]))
    return {**tensors, name: kept}
