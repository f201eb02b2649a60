"""Every layer's error beside torch's own."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from andrea_export.compare.compare import compare
from andrea_export.compare.inputs import Inputs, seeded_cases
from andrea_export.compare.sources.onnx_source import onnx_source
from andrea_export.compare.sources.torch_source import TorchSource
from andrea_export.core.precision import PRECISIONS
from andrea_export.core.progress import Silent
from andrea_export.graph.canonical.export import export_canonical
from andrea_export.targets.tensorrt.source import mixed_source
from andrea_export.weights.load import load_model

METRICS = ("max_abs", "relative_l2")


def ratios(preset: str, seed: int) -> Iterator[tuple[str, float]]:
    """(precision, error and metric; onnxruntime's error over torch's) of every layer that is not exact."""
    loaded = load_model(preset=preset, checkpoint=None, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for parameter in loaded.model.parameters():
        if parameter.ndim == 1:  # GPT-2's initial biases are zero and gains one, which hides their rounding
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    reference = TorchSource(loaded.model, loaded.origin, precision="fp64", provenance={})
    inputs = Inputs(cases=seeded_cases(loaded.config, seed=seed), source=f"seed {seed}")
    with tempfile.TemporaryDirectory() as folder:
        path = export_canonical(loaded, Path(folder))
        fp16 = mixed_source(path, loaded.config, loaded.origin, PRECISIONS["fp16"], folder=Path(folder))
        candidates = [onnx_source(path), fp16]
        for entry in compare(reference, candidates, inputs, progress=Silent()):
            for row in entry.rows:
                errors = {"accumulated": (row.metrics, row.basis)}
                if row.local is not None:
                    errors["local"] = (row.local.metrics, row.local.basis)
                for error, (metrics, basis) in errors.items():
                    for metric in METRICS:
                        if metrics.get(metric, 0.0) > 0.0:
                            yield f"{entry.candidate.precision} {error} {metric}", metrics[metric] / basis[metric]
