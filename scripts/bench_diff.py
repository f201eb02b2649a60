"""What a comparison costs: wall time, processor time and peak memory of `andrea-export diff`, as JSON on stdout.

    python scripts/bench_diff.py [--preset andrea-120m] [--tokens 128] [--runs 3]

Compares the torch model in fp64 with its own ONNX file, twice: ``tensors`` is the two passes (with taps, layer by layer
in both errors, and as shipped) over one row of that many tokens; ``with_language_model`` adds every context up to 1024,
the padded batch, decode and greedy. Each run is a process of its own; memory is its peak resident set (wait4). Goal on
two cores, ANDREA-120M, 128 tokens, tensors: 30 s and 4 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from andrea_export.bundle.manifest import machine_facts
from andrea_export.core.installed import installed_versions
from andrea_export.graph.canonical.export import export_canonical
from andrea_export.weights.load import load_model, save_checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of ``andrea-export diff``."""

    seconds: float
    cpu_seconds: float
    peak_mib: float
    exit_code: int


def main() -> None:
    """Measures and prints one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="andrea-120m")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    runs: dict[str, list[Run]] = {"tensors": [], "with_language_model": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkpoint, tokens = folder / "model.safetensors", folder / "tokens.txt"
        save_checkpoint(load_model(preset=options.preset, checkpoint=None, seed=0).model, checkpoint)
        loaded = load_model(preset=None, checkpoint=checkpoint, seed=0)
        model = export_canonical(loaded, folder)
        ids = random.Random(0).choices(range(loaded.config.vocab_size), k=options.tokens)
        tokens.write_text(",".join(map(str, ids)))
        del loaded
        command = ["diff", str(checkpoint), str(model), "--inputs", str(tokens), "--json"]
        for index in range(options.runs):
            for kind in runs:
                runs[kind].append(_measured([*command, *([] if kind != "tensors" else ["--no-language-model"])]))
                print(f"run {index + 1} {kind}: {runs[kind][-1].seconds:.1f} s", file=sys.stderr)
    conditions = {
        "preset": options.preset,
        "tokens": options.tokens,
        "num_cores": os.cpu_count(),
        "load_average_before": load_before,
        "machine": machine_facts(),
        "versions": installed_versions(),
    }
    print(json.dumps({**conditions, **{kind: _summary(results) for kind, results in runs.items()}}, indent=2))


def _measured(arguments: list[str]) -> Run:
    begin = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-c", "from andrea_export.cli import main; main()", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(child.pid, 0)
    return Run(
        seconds=round(time.perf_counter() - begin, 2),
        cpu_seconds=round(usage.ru_utime + usage.ru_stime, 2),
        peak_mib=round(usage.ru_maxrss / 1024, 1),
        exit_code=os.waitstatus_to_exitcode(status),
    )


def _summary(runs: list[Run]) -> dict[str, object]:
    return {
        "median_seconds": statistics.median(run.seconds for run in runs),
        "median_cpu_seconds": statistics.median(run.cpu_seconds for run in runs),
        "max_peak_mib": max(run.peak_mib for run in runs),
        "runs": [asdict(run) for run in runs],
    }


if __name__ == "__main__":
    main()
