"""How large onnxruntime's error is beside torch's own: the figures behind K in ``andrea_export/judge.py``.

    python scripts/measure_budget_ratio.py [--presets andrea-tiny,andrea-12m,andrea-120m] [--seeds 3]

For each preset and seed: every layer's error over max(torch's error, one rounding), in max abs and in relative L2,
as the report computes them; prints the smallest and largest over all layers. Exact layers are left out.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from andrea_export.backends.onnxruntime import OnnxSession
from andrea_export.canonical import export_canonical
from andrea_export.checkpoint import load_model
from andrea_export.comparison import reference_of, rows_from
from andrea_export.judge import K


def main() -> None:
    """Measures and prints one line a preset and seed, then the extremes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", default="andrea-tiny,andrea-12m,andrea-120m")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    extremes: dict[str, list[float]] = {"max_abs": [], "relative_l2": []}
    for preset in options.presets.split(","):
        for seed in range(options.seeds):
            ratios = _ratios(preset, seed)
            for metric, values in ratios.items():
                extremes[metric] += values
            line = "  ".join(f"{metric} {min(values):.2f}..{max(values):.2f}" for metric, values in ratios.items())
            print(f"{preset} seed {seed}: {line}", flush=True)
    for metric, values in extremes.items():
        print(f"{metric}: {min(values):.2f} to {max(values):.2f} of torch's over {len(values)} layers; budget at {K:g}")


def _ratios(preset: str, seed: int) -> dict[str, list[float]]:
    loaded = load_model(preset=preset, checkpoint=None, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for parameter in loaded.model.parameters():
        if parameter.ndim == 1:  # GPT-2's initial biases are zero and gains one, which hides their rounding
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    reference = reference_of(loaded.model, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        path = export_canonical(loaded, Path(folder))
        with OnnxSession(path, taps=reference.layers) as session:
            seen = reference.observe(session, "fp32")
    rows = rows_from(seen, reference, candidate="onnxruntime-cpu", precision="fp32", layers=reference.layers)
    return {
        metric: [row.metrics[metric] / (row.budget[metric] / K) for row in rows if row.metrics[metric] > 0.0]
        for metric in ("max_abs", "relative_l2")
    }


if __name__ == "__main__":
    main()
