"""Inspection of the published training checkpoint."""

from __future__ import annotations

from pathlib import Path

from andrea_export.core.errors import CheckpointError
from andrea_export.core.hashing import sha256_of
from andrea_export.inspection.arithmetic import parameter_counts
from andrea_export.inspection.facts import Inspection
from andrea_export.weights.readers.published import published_header
from andrea_model.config import PRESETS


def inspect_published(path: Path) -> Inspection:
    header = published_header(path)
    if header is None:
        raise CheckpointError(f"checkpoint {path} changed while it was being read")
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
    matches = "; ".join(f"that is {name} with {way}" for name, way in fits) or "that is not the count of any preset"
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
