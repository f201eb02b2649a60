"""How large onnxruntime's error is beside torch's own: the figures behind K in ``andrea_export/judge.py``.

    python scripts/measure_budget_ratio.py [--presets andrea-tiny,andrea-12m,andrea-120m] [--seeds 3]

For each preset, seed and precision (fp32, and fp16 as its engines' graph on the CPU): every layer's error over
max(torch's error, one rounding), accumulated and local, in max abs and in relative L2, as the report computes them;
prints the smallest and largest over all layers. Exact layers are left out.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import checkout  # noqa: F401
import torch

from andrea_export.compare.compare import compare
from andrea_export.compare.inputs import Inputs, seeded_cases
from andrea_export.compare.sources.onnx_source import onnx_source
from andrea_export.compare.sources.torch_source import TorchSource
from andrea_export.core.precision import PRECISIONS
from andrea_export.core.progress import Silent
from andrea_export.graph.canonical.export import export_canonical
from andrea_export.judge.budget import K
from andrea_export.validation.opening import Sources
from andrea_export.weights.load import load_model

METRICS = ("max_abs", "relative_l2")


def main() -> None:
    """Measures and prints one line a preset, seed, precision and error, then the extremes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", default="andrea-tiny,andrea-12m,andrea-120m")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    all_ratios: dict[str, list[float]] = defaultdict(list)
    for preset in options.presets.split(","):
        for seed in range(options.seeds):
            found: dict[str, list[float]] = defaultdict(list)
            for kind, ratio in _ratios(preset, seed):
                found[kind].append(ratio)
            for kind, values in found.items():
                all_ratios[kind] += values
                print(f"{preset} seed {seed} {kind}: {min(values):.2f} to {max(values):.2f}", flush=True)
    for kind, values in all_ratios.items():
        print(f"{kind}: {min(values):.2f} to {max(values):.2f} of torch's over {len(values)} layers; budget at {K:g}")


def _ratios(preset: str, seed: int) -> Iterator[tuple[str, float]]:
    loaded = load_model(preset=preset, checkpoint=None, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for parameter in loaded.model.parameters():
        if parameter.ndim == 1:  # GPT-2's initial biases are zero and gains one, which hides their rounding
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    reference = TorchSource(loaded.model, loaded.origin, precision="fp64", provenance={})
    inputs = Inputs(cases=seeded_cases(loaded.config, seed=seed), source=f"seed {seed}")
    with tempfile.TemporaryDirectory() as folder, Sources() as sources:
        path = export_canonical(loaded, Path(folder))
        candidates = [onnx_source(path), sources.mixed(path, loaded.config, loaded.origin, PRECISIONS["fp16"])]
        for entry in compare(reference, candidates, inputs, progress=Silent()):
            for row in entry.rows:
                errors = {"accumulated": (row.metrics, row.basis)}
                if row.local is not None:
                    errors["local"] = (row.local.metrics, row.local.basis)
                for error, (metrics, basis) in errors.items():
                    for metric in METRICS:
                        if metrics.get(metric, 0.0) > 0.0:
                            yield f"{entry.candidate.precision} {error} {metric}", metrics[metric] / basis[metric]


if __name__ == "__main__":
    main()
