"""How large onnxruntime's error is beside torch's own: the figures behind K in ``andrea_export/judge/budget.py``.

    python scripts/measure_budget_ratio.py [--presets andrea-tiny,andrea-12m,andrea-120m] [--seeds 3]

For each preset, seed and precision (fp32, and fp16 as its engines' graph on the CPU): every layer's error over
max(torch's error, one rounding), accumulated and local, in max abs and in relative L2, as the report computes them;
prints the smallest and largest over all layers. Exact layers are left out.
"""

import argparse
from collections import defaultdict

import checkout  # noqa: F401
from measure.budget_ratio import ratios

from andrea_export.judge.budget import K


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
            for kind, ratio in ratios(preset, seed):
                found[kind].append(ratio)
            for kind, values in found.items():
                all_ratios[kind] += values
                print(f"{preset} seed {seed} {kind}: {min(values):.2f} to {max(values):.2f}", flush=True)
    for kind, values in all_ratios.items():
        print(f"{kind}: {min(values):.2f} to {max(values):.2f} of torch's over {len(values)} layers; budget at {K:g}")


if __name__ == "__main__":
    main()
