"""Inspection of a checkpoint: a safetensors file, or the published one of the training engine."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from andrea_export.core.errors import CheckpointError
from andrea_export.core.names import CONFIG_KEY
from andrea_export.inspection.facts import Inspection, TensorFact, parameter_counts
from andrea_export.weights.origin import preset_of
from andrea_export.weights.readers import Checkpoint, Reading, open_checkpoint
from andrea_export.weights.readers.base import described
from andrea_export.weights.readers.published import open_published
from andrea_export.weights.readers.recognise import published_header
from andrea_export.weights.readers.stored import files_of
from andrea_model.config import PRESETS, AndreaConfig

_HASHED_BYTES = 1 << 30  # hashing more takes longer than whoever looks at a file wants to wait


def inspect_checkpoint(path: Path) -> Inspection:
    opened = open_checkpoint(path)
    shapes = {name: tensor.shape for name, tensor in opened.tensors.items()}
    config = opened.config or _config_from_shapes(shapes)
    notes = opened.notes
    if config is None:
        notes += ("its tensors are not those of an ANDREA preset (names and shapes: model/README.md)",)
    elif opened.config is None:
        notes += (
            "the file states no configuration; read from the tensors' shapes, except for the number of heads, "
            "which no shape shows: taken from the preset with the same shapes",
        )
    num_bytes = sum(file.stat().st_size for file in files_of(opened.tensors.values()))
    if num_bytes > _HASHED_BYTES:
        notes += ("its sha256 is left out: it is large; a build records it",)
    return Inspection(
        kind="checkpoint",
        family=opened.family,
        path=str(path),
        num_bytes=num_bytes,
        sha256=opened.sha256() if num_bytes <= _HASHED_BYTES else None,
        config=config,
        preset=preset_of(config),
        weights=opened.untrained or "the weights are in this file; whether it was trained, it does not say",
        trained=None if opened.untrained is None else False,
        num_parameters=sum(math.prod(shape) for shape in shapes.values()),
        tensors=tuple(
            TensorFact(name=name, dtype=tensor.dtype, dims=tensor.shape) for name, tensor in opened.tensors.items()
        ),
        made_by={**_orientation(opened, config), **_own_metadata(opened.metadata)},
        notes=notes,
    )


def _own_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in metadata.items() if key != CONFIG_KEY}


def _orientation(opened: Checkpoint, config: AndreaConfig | None) -> dict[str, str]:
    """How its matrices are stored, where that can be told."""
    if config is None or (opened.orientation is None and opened.family == "andrea-export"):
        return {}
    return {"matrices": described(opened.orientation_in(config))}


def _config_from_shapes(shapes: Mapping[str, tuple[int, ...]]) -> AndreaConfig | None:
    """The preset whose tensors have exactly these shapes, if there is one."""
    for config in PRESETS.values():
        if shapes.get("token_embed.weight") == (config.vocab_size, config.d_model) and shapes.get(
            f"blocks.{config.n_layer - 1}.mlp.fc.weight"
        ) == (config.d_model, config.mlp_dim):
            return config
    return None


def inspect_published(path: Path) -> Inspection:
    header = published_header(path)
    if header is None:
        raise CheckpointError(f"checkpoint {path} changed while it was being read")
    step, num_params = header
    fits = [
        (name, config)
        for name, preset in PRESETS.items()
        for config in (preset, replace(preset, tied_head=False, bias=False, norm_parameters=False))
        if parameter_counts(config).exact == num_params
    ]
    opened = open_published(path, Reading())
    matches = "; ".join(f"that is {name} with {config.variant}" for name, config in fits)
    return Inspection(
        kind="published-checkpoint",
        path=str(path),
        num_bytes=path.stat().st_size,
        sha256=opened.sha256() if path.stat().st_size <= 3 * _HASHED_BYTES else None,
        config=fits[0][1] if fits else None,
        preset=fits[0][0] if fits else None,
        weights=f"training step {step:,}",
        trained=step > 0,
        num_parameters=num_params,
        made_by={"layout": "int32 step, int32 n_params, float32 weights, Adam m, Adam v", "step": str(step)},
        notes=(
            f"{num_params:,} parameters: {matches or 'that is not the count of any preset'}",
            "its sha256 is that of its header and weights: Adam's moments are not read",
            *opened.notes,
        ),
    )
