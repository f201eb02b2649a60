"""The published ANDREA training checkpoint: its header. Its card does not state the order of the tensors behind it."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from andrea_export.core.errors import CheckpointError

_HEAD = struct.Struct("<ii")


class PublishedHeader(NamedTuple):
    """What the file says of itself."""

    step: int
    num_params: int


def published_header(path: Path) -> PublishedHeader | None:
    """The header of a file that has the published checkpoint's layout, else None.

    Source: the model card: int32 step, int32 n_params, then 3 × n_params float32 (weights, Adam m, Adam v).
    """
    with path.open("rb") as file:
        head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    header = PublishedHeader(*_HEAD.unpack(head))
    num_bytes = _HEAD.size + 12 * header.num_params
    return header if header.num_params > 0 and path.stat().st_size == num_bytes else None


def no_order(path: Path) -> CheckpointError:
    """The error for building from such a file."""
    header = published_header(path)
    told = f" (step {header.step}, {header.num_params:,} parameters)" if header else ""
    return CheckpointError(
        f"checkpoint {path} is not a safetensors file",
        hint=f"this is the published training checkpoint{told}; its card does not state the order of its tensors, so "
        "convert it to safetensors with the training engine",
    )
