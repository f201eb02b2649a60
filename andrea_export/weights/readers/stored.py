"""Tensors where they lie: what a file says of each, and reading one without the others. Knows no family of models."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from andrea_export.core.errors import CheckpointError, first_line

if TYPE_CHECKING:
    import torch

# Element type, as safetensors calls it → its size in bytes. Those of weights come first.
FLOAT_TYPES = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8}
_TORCH = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}
_FROM_TORCH = {f"torch.{name}": dtype for dtype, name in _TORCH.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor in a file, or (``value``) one that could only be read with all the others."""

    file: Path
    offset: int
    """Of its first byte in the file."""
    dtype: str
    """As safetensors calls it."""
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    """In elements; None for rows one after the other."""
    value: torch.Tensor | None = None

    def read(self) -> torch.Tensor:
        """The tensor, in its own type. Raises: CheckpointError where the file ends before it does."""
        import torch

        if self.value is not None:
            return self.value
        strides = self.strides or _row_by_row(self.shape)
        extent = 1 + sum((size - 1) * stride for size, stride in zip(self.shape, strides, strict=True))
        num_bytes = extent * FLOAT_TYPES[self.dtype]
        raw = np.fromfile(self.file, np.uint8, num_bytes, offset=self.offset)
        if raw.size != num_bytes:
            raise CheckpointError(f"checkpoint {self.file} ends inside a tensor", hint="copy it again whole")
        flat = torch.from_numpy(raw).view(getattr(torch, _TORCH[self.dtype]))
        return flat.as_strided(self.shape, strides)


Tensors = Mapping[str, StoredTensor]


def _row_by_row(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def num_not_finite(tensor: torch.Tensor) -> int:
    """How many values are NaN or Inf. A finite sum has none, and is had without a mask as large as the tensor."""
    total = float(tensor.sum())
    if total - total == 0:
        return 0
    return tensor.numel() - int(tensor.isfinite().sum())


def same(one: StoredTensor, other: StoredTensor) -> bool:
    """Whether two tensors are the same place in a file, or else the same values."""
    if one.shape != other.shape:
        return False
    if one.value is None and (one.file, one.offset, one.strides) == (other.file, other.offset, other.strides):
        return True
    return bool((one.read() == other.read()).all())


def safetensors_in(path: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """The tensors of a safetensors file, in order of name, and its metadata; its length is checked against its header.

    Raises: CheckpointError for a file that is empty, truncated or not safetensors (or names a tensor twice).
    Source: https://github.com/huggingface/safetensors#format (u64 header length, JSON, data without gaps).
    """
    from safetensors import SafetensorError, safe_open

    num_bytes = path.stat().st_size
    if num_bytes == 0:
        raise CheckpointError(f"checkpoint {path} is empty")
    found: dict[str, StoredTensor] = {}
    try:
        with safe_open(path, framework="np") as file:
            metadata: dict[str, str] = file.metadata() or {}
            views = {name: file.get_slice(name) for name in file.offset_keys()}
            facts = {name: (view.get_dtype(), tuple(view.get_shape())) for name, view in views.items()}
        with path.open("rb") as raw:
            offset = 8 + int.from_bytes(raw.read(8), "little")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"checkpoint {path} is not a whole safetensors file ({num_bytes:,} bytes): {first_line(error)}",
            hint="write it with safetensors.torch.save_file, or andrea_export.checkpoint.save_checkpoint",
        ) from None
    for name, (dtype, shape) in facts.items():
        found[name] = StoredTensor(file=path, offset=offset, dtype=dtype, shape=shape)
        offset += math.prod(shape) * _bits_of(dtype) // 8
    return dict(sorted(found.items())), metadata


def _bits_of(dtype: str) -> int:
    """The bits of an element: ``BF16``, ``F8_E4M3`` and ``I64`` say theirs."""
    return 8 if dtype == "BOOL" else int(re.findall(r"[0-9]+", dtype)[0])


def pickle_in(path: Path) -> Any:
    """What ``torch.save`` wrote, weights only: no code of the file runs. Its tensors are described, not read.

    Raises: CheckpointError for a file that is damaged, or holds anything but tensors and plain values.
    """
    import pickle

    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        with FakeTensorMode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of another pickle protocol: what it cannot read, it refuses
            with path.open("rb") as file:  # a path that ends in .safetensors would be read as such
                content = torch.load(file, weights_only=True)
    except pickle.UnpicklingError as error:
        said = next((line for line in str(error).splitlines() if "nsupported" in line or "GLOBAL" in line), "")
        raise CheckpointError(
            f"checkpoint {path} holds more than tensors, and code in it would not be run: {said or first_line(error)}",
            hint="save its state_dict alone with torch.save, or as safetensors",
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"checkpoint {path} is not a whole file of torch.save: {first_line(error)}") from None
    return content


def pickled_tensors(state: Mapping[str, Any], path: Path) -> dict[str, StoredTensor]:
    """A state dict of ``pickle_in`` as stored tensors, in its order. Raises: CheckpointError for what is not one."""
    import torch

    strange = [str(name) for name, value in state.items() if not isinstance(value, torch.Tensor)]
    if strange or not state:
        raise CheckpointError(f"checkpoint {path}: {strange[0] if strange else 'its state dict'} holds no tensor")
    found: dict[str, StoredTensor] = {}
    whole: Mapping[str, torch.Tensor] | None = None
    for name, tensor in state.items():
        start = getattr(tensor.untyped_storage(), "_checkpoint_offset", None)
        value = None
        if start is None:  # the format from before torch 1.6 can only be read whole
            whole = _loaded_whole(path) if whole is None else whole
            value = whole[name]
        found[name] = StoredTensor(
            file=path,
            offset=(start or 0) + tensor.storage_offset() * tensor.element_size(),
            dtype=_FROM_TORCH.get(str(tensor.dtype), str(tensor.dtype).removeprefix("torch.")),
            shape=tuple(tensor.shape),
            strides=tuple(tensor.stride()),
            value=value,
        )
    return found


def _loaded_whole(path: Path) -> Mapping[str, torch.Tensor]:
    import torch

    with path.open("rb") as file:
        content: Mapping[str, Any] = torch.load(file, weights_only=True)
    inner = content.get("model")
    return inner if isinstance(inner, Mapping) else content


def files_of(tensors: Iterable[StoredTensor]) -> tuple[Path, ...]:
    """The files that hold them, each once, by name."""
    return tuple(sorted({tensor.file for tensor in tensors}))
