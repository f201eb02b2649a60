"""What a whole build costs: wall time and peak memory, cold and with nothing changed, as JSON on stdout.

    python scripts/bench_build.py [--preset andrea-120m] [--precision fp32] [--runs 3]

``cold`` has no earlier bundle and an empty plugin cache; ``unchanged`` is the same command again. Goals on two cores,
ANDREA-120M, fp32: cold 60 s and 3 GB, its onnx step 10 s, unchanged 5 s.
"""

import argparse
import json
import statistics
import sys
import tempfile
from typing import Any

import checkout  # noqa: F401
from measure.results import CommandRun, conditions, run_andrea_export, summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="andrea-120m")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    document: dict[str, Any] = {"preset": options.preset, "precision": options.precision, **conditions()}
    runs: dict[str, list[CommandRun]] = {"cold": [], "unchanged": []}
    for index in range(options.runs):
        with tempfile.TemporaryDirectory() as folder:
            arguments = [
                *("build", f"{folder}/bundle", "--preset", options.preset, "--precision", options.precision),
                *("--cache-dir", f"{folder}/cache", "--json"),
            ]
            for kind, done in runs.items():
                done.append(run_andrea_export(arguments))
                print(f"run {index + 1} {kind}: {done[-1].seconds:.1f} s", file=sys.stderr)
    print(json.dumps({**document, **{kind: _of_builds(done) for kind, done in runs.items()}}, indent=2))


def _of_builds(runs: list[CommandRun]) -> dict[str, Any]:
    """The summary, with what each build says of its steps."""
    results = [json.loads(run.stdout) for run in runs]
    seconds = [{step["name"]: round(step["seconds"], 2) for step in result["steps"]} for result in results]
    return {
        **summary(runs),
        "median_onnx_step_seconds": statistics.median(steps["onnx"] for steps in seconds),
        "verdicts": [result["verdict"] for result in results],
        "steps": seconds,
        "reused": [{step["name"]: step["reused"] for step in result["steps"]} for result in results],
    }


if __name__ == "__main__":
    main()
