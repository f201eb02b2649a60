"""What a whole build costs: wall time and peak memory, cold and with nothing changed, as JSON on stdout.

    python scripts/bench_build.py [--preset andrea-120m] [--precision fp32] [--runs 3]

Runs the command line tool as a user does: ``cold`` has no earlier bundle and an empty plugin cache; ``unchanged`` is
the same command again. Memory is that of the process and its children together (resident pages summed, sampled every
20 ms: shared pages count more than once, so the true peak is lower). Goals on two cores, ANDREA-120M, fp32: cold 60 s
and 3 GB, its onnx step 10 s, unchanged 5 s.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from andrea_export.bundle.manifest import machine_facts
from andrea_export.core.installed import installed_versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of ``andrea-export build``."""

    seconds: float
    peak_mib: float
    verdict: str
    steps: dict[str, float]
    reused: dict[str, bool]


def main() -> None:
    """Measures and prints one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="andrea-120m")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    runs: dict[str, list[Run]] = {"cold": [], "unchanged": []}
    for index in range(options.runs):
        with tempfile.TemporaryDirectory() as folder:
            arguments = [
                *("build", f"{folder}/bundle", "--preset", options.preset, "--precision", options.precision),
                *("--cache-dir", f"{folder}/cache", "--json"),
            ]
            for kind in runs:
                runs[kind].append(_measured(arguments))
                print(f"run {index + 1} {kind}: {runs[kind][-1].seconds:.1f} s", file=sys.stderr)
    print(json.dumps({**_conditions(options), **{kind: _summary(results) for kind, results in runs.items()}}, indent=2))


def _measured(arguments: list[str]) -> Run:
    begin = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "andrea_export", *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    peak = 0
    while child.poll() is None:
        peak = max(peak, _resident_bytes(child.pid))
        time.sleep(0.02)
    seconds = time.perf_counter() - begin
    assert child.stdout is not None
    result = json.loads(child.stdout.read())
    return Run(
        seconds=round(seconds, 2),
        peak_mib=round(peak / 2**20, 1),
        verdict=result["verdict"],
        steps={step["name"]: round(step["seconds"], 2) for step in result["steps"]},
        reused={step["name"]: step["reused"] for step in result["steps"]},
    )


def _resident_bytes(pid: int) -> int:
    """Resident memory of a process and everything it started."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, IndexError):  # it ended between two looks
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(_resident_bytes(int(child)) for child in children)


def _conditions(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "preset": options.preset,
        "precision": options.precision,
        "num_cores": os.cpu_count(),
        "load_average_before": os.getloadavg()[0],
        "machine": machine_facts(),
        "versions": installed_versions(),
    }


def _summary(runs: list[Run]) -> dict[str, Any]:
    return {
        "median_seconds": statistics.median(run.seconds for run in runs),
        "median_onnx_step_seconds": statistics.median(run.steps["onnx"] for run in runs),
        "max_peak_mib": max(run.peak_mib for run in runs),
        "runs": [asdict(run) for run in runs],
    }


if __name__ == "__main__":
    main()
