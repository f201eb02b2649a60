"""Inspection of weights: safetensors, and the published training checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from andrea_export.inspection.arithmetic import parameter_counts
from andrea_export.inspection.facts import Inspection, TensorFact, preset_of, product
from andrea_export.weights.checkpoint import (
    CONFIG_KEY,
    WEIGHTS_KEY,
    config_from_metadata,
    published_header,
    read_header,
    says_untrained,
    sha256_of,
)
from andrea_model.config import PRESETS, AndreaConfig


def inspect_checkpoint(path: Path) -> Inspection:
    header = read_header(path)
    config = config_from_metadata(header.metadata, path)
    shapes = {name: shape for name, (_, shape) in header.tensors.items()}
    notes = []
    if config is None:
        config = _config_from_shapes(shapes)
        if config is not None:
            notes.append(
                "the file states no configuration; read from the tensors' shapes, except for the number of heads, "
                "which no shape shows: taken from the preset with the same shapes"
            )
        else:
            notes.append("its tensors are not those of an ANDREA preset (names and shapes: model/README.md)")
    return Inspection(
        kind="checkpoint",
        path=str(path),
        num_bytes=path.stat().st_size,
        sha256=sha256_of(path),
        config=config,
        preset=preset_of(config),
        weights=header.metadata[WEIGHTS_KEY]
        if says_untrained(header.metadata)
        else "the weights are in this file; whether it was trained, it does not say",
        trained=False if says_untrained(header.metadata) else None,
        num_parameters=sum(product(shape) for shape in shapes.values()),
        tensors=tuple(
            TensorFact(name=name, dtype=dtype, dims=shape) for name, (dtype, shape) in header.tensors.items()
        ),
        made_by={key: value for key, value in header.metadata.items() if key != CONFIG_KEY},
        notes=tuple(notes),
    )


def inspect_published(path: Path) -> Inspection:
    header = published_header(path)
    assert header is not None
    step, num_params = header
    fits = [
        (name, way)
        for name, config in PRESETS.items()
        for way, count in (
            ("tied head, biases, LayerNorms", parameter_counts(config).exact),
            ("untied head, no biases, no LayerNorm parameters", parameter_counts(config).untied_matrices),
        )
        if count == num_params
    ]
    matches = "; ".join(f"that is {name} with {way}" for name, way in fits) or "that is no count of any preset"
    return Inspection(
        kind="published-checkpoint",
        path=str(path),
        num_bytes=path.stat().st_size,
        sha256=sha256_of(path),
        config=PRESETS[fits[0][0]] if fits else None,
        preset=fits[0][0] if fits else None,
        weights=f"training step {step:,}",
        trained=step > 0,
        num_parameters=num_params,
        made_by={"layout": "int32 step, int32 n_params, float32 weights, Adam m, Adam v", "step": str(step)},
        notes=(
            f"{num_params:,} parameters: {matches}",
            "the model card does not state the order of the tensors, so it cannot be built from as it is: convert it "
            "to safetensors with the training engine",
        ),
    )


def _config_from_shapes(shapes: Mapping[str, tuple[int, ...]]) -> AndreaConfig | None:
    """The preset whose tensors have exactly these shapes, if there is one."""
    for config in PRESETS.values():
        if shapes.get("token_embed.weight") == (config.vocab_size, config.d_model) and shapes.get(
            f"blocks.{config.n_layer - 1}.mlp.fc.weight"
        ) == (config.d_model, config.mlp_dim):
            return config
    return None
