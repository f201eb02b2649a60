"""Our own checkpoints: safetensors under the model's names, every matrix ``[in, out]``: nothing is transposed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from andrea_export.core.errors import CheckpointError
from andrea_export.core.names import CONFIG_KEY, WEIGHTS_KEY
from andrea_export.weights.origin import UNTRAINED
from andrea_export.weights.readers.base import CheckpointHeader, listed
from andrea_model.config import PRESETS, AndreaConfig

if TYPE_CHECKING:
    import torch

_TYPES = ("F32", "F16", "BF16")  # each is a subset of fp32, so widening it is exact


class AndreaReader:
    def read_header(self, path: Path) -> CheckpointHeader:
        """The header of a safetensors file, its length checked against the file's.

        Raises: CheckpointError for a file that is empty, truncated, or not safetensors, or states an impossible shape.
        Source: https://github.com/huggingface/safetensors#format (u64 header length, JSON, data).
        """
        from safetensors import SafetensorError, safe_open

        num_bytes = path.stat().st_size
        if num_bytes == 0:
            raise CheckpointError(f"checkpoint {path} is empty")
        try:
            with safe_open(path, framework="np") as file:
                views = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
                tensors = {name: (view.get_dtype(), tuple(view.get_shape())) for name, view in views.items()}
                metadata: dict[str, str] = file.metadata() or {}
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"checkpoint {path} is not a whole safetensors file ({num_bytes:,} bytes): {error}",
                hint="write it with safetensors.torch.save_file, or andrea_export.checkpoint.save_checkpoint",
            ) from None
        weights = metadata.get(WEIGHTS_KEY, "")
        return CheckpointHeader(
            tensors=tensors,
            metadata=metadata,
            config=_config_of(metadata, path),
            untrained=weights if weights.startswith(UNTRAINED) else None,
        )

    def check(self, header: CheckpointHeader, config: AndreaConfig, path: Path) -> None:
        from andrea_model.model import parameter_shapes

        wanted = parameter_shapes(config)
        found = {name: tensor for name, tensor in header.tensors.items() if name in wanted}
        problems = [f"missing {name} {list(wanted[name])}" for name in wanted if name not in found]
        problems += [f"unexpected {name}" for name in header.tensors if name not in wanted]
        problems += [
            f"{name} has shape {list(shape)}, expected {list(wanted[name])}"
            for name, (_, shape) in found.items()
            if shape != wanted[name]
        ]
        problems += [
            f"{name} has type {dtype}, expected F32, F16 or BF16"
            for name, (dtype, _) in found.items()
            if dtype not in _TYPES
        ]
        if problems:
            raise CheckpointError(listed(f"checkpoint {path} does not fit", problems), hint=_shape_hint(header))

    def tensors(self, path: Path, config: AndreaConfig) -> Iterator[tuple[str, torch.Tensor]]:
        from safetensors import safe_open

        from andrea_model.model import parameter_shapes

        with safe_open(path, framework="pt") as file:
            for name in parameter_shapes(config):
                yield name, file.get_tensor(name)


def _config_of(metadata: Mapping[str, str], path: Path) -> AndreaConfig | None:
    """The shape that the metadata states, if it states one."""
    text = metadata.get(CONFIG_KEY)
    if text is None:
        return None
    try:
        return AndreaConfig(**json.loads(text))
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"checkpoint {path}: metadata '{CONFIG_KEY}' is not a configuration: {error}") from None


def _shape_hint(header: CheckpointHeader) -> str:
    """Which preset the file's own embedding suggests."""
    _, embedding = header.tensors.get("token_embed.weight", ("", ()))
    for name, config in PRESETS.items():
        if embedding == (config.vocab_size, config.d_model):
            return f"its token_embed.weight is that of {name}: use --preset {name}"
    return "see model/README.md for the names"
