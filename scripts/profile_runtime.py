"""Where the time of a CPU graph goes, operator by operator, from onnxruntime's own profile.

    python scripts/profile_runtime.py BUNDLE [--output docs/measurements/PROCESSOR/profile]

For every precision of the bundle: a token after 32 to 132 others, and a prompt of 128. Medians of each node over all
runs, added up by operator and layer. Profiling costs a few microseconds a node, so the sums are above what runs take;
the shares are what to look at. The weights' bytes and the machine's limits say how far an operator could go.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import checkout  # noqa: F401
import onnxruntime
from measure.processor import processor_facts

from andrea_export.bundle.manifest import Bundle, open_bundle
from andrea_export.core.precision import OrtPrecision
from andrea_export.runtime.bench import decoded_bytes
from andrea_export.runtime.cores import num_usable_cores
from andrea_export.runtime.machine import measure_limits
from andrea_export.runtime.open import shared_tuning
from andrea_export.runtime.shared_cache import SharedCacheDecoder
from andrea_export.sessions.onnxruntime import open_raw
from andrea_export.targets.ort_cpu.files import OrtCpuFiles, files_of

TOKENS, PROMPT, PROMPT_RUNS = 100, 128, 10


def main() -> None:
    """Profiles, prints Markdown, writes it and JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    bundle, threads = open_bundle(options.bundle), num_usable_cores()
    limits = measure_limits(threads)
    document: dict[str, Any] = {
        "machine": processor_facts(),
        "onnxruntime": onnxruntime.__version__,
        "threads": threads,
        "read_bytes_s": limits.read_bytes_s,
        "fp32_flops": limits.fp32_flops,
        "int8_ops": limits.int8_ops,
        "graphs": [row for precision in bundle.manifest.ort_cpu for row in _profiles(bundle, precision, threads)],
    }
    text = _markdown(document)
    print(text)
    if options.output is not None:
        options.output.with_suffix(".json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        options.output.with_suffix(".md").write_text(text, encoding="utf-8")


def _profiles(bundle: Bundle, precision: OrtPrecision, threads: int) -> list[dict[str, Any]]:
    files = files_of(precision, bundle.manifest.recipe.ort_cpu.int8_decode)
    rows = []
    for work, name, runs in (("token", files.decode, TOKENS), ("prompt", files.prefill, PROMPT_RUNS)):
        rows.append(
            {
                "precision": precision,
                "work": work,
                "graph": name,
                "weight_bytes": decoded_bytes(bundle.path / name),
                "milliseconds": _profile(bundle, files, name, work, runs, threads),
            }
        )
    return rows


def _profile(bundle: Bundle, files: OrtCpuFiles, profiled: str, work: str, runs: int, threads: int) -> dict[str, float]:
    """Operator and layer → milliseconds a run, most first, of one of the graphs."""
    tuning = shared_tuning(files, threads)
    with tempfile.TemporaryDirectory(prefix="andrea-") as folder:
        traced = replace(tuning, profile=Path(folder) / "profile")
        sessions = {
            name: open_raw(bundle.path / name, "cpu", tuning=traced if name == profiled else tuning)
            for name in {files.decode, files.prefill}
        }
        decoder = SharedCacheDecoder(
            name=profiled,
            decode=sessions[files.decode],
            prefill=sessions[files.prefill],
            config=bundle.config,
            rows_independent=True,
        )
        if work == "token":
            generation = decoder.begin([[1] * 32], 32 + runs)
            for token in range(runs):
                generation.step([token])
        else:
            for _ in range(runs):
                decoder.begin([list(range(PROMPT))], PROMPT).close()
        events = json.loads(Path(sessions[profiled].end_profiling()).read_text(encoding="utf-8"))
    durations: dict[str, list[int]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            layer = re.sub(r"^blocks\.\d+\.", "", event["name"].removesuffix("_kernel_time"))
            durations[f"{event['args']['op_name']} {layer}"].append(event["dur"])
    each = {key: statistics.median(times) * (len(times) / runs) / 1e3 for key, times in durations.items()}
    return dict(sorted(each.items(), key=lambda entry: -entry[1]))


def _markdown(document: dict[str, Any]) -> str:
    machine = document["machine"]
    lines = [
        "# Where the time goes",
        "",
        "Made by `scripts/profile_runtime.py`; do not edit. onnxruntime "
        f"{document['onnxruntime']}, {machine['cpu']} ({machine['flags']}), {document['threads']} threads; it read "
        f"{document['read_bytes_s'] / 1e9:.1f} GB/s and multiplied {document['fp32_flops'] / 1e9:.0f} GFLOP/s in fp32, "
        f"{document['int8_ops'] / 1e9:.0f} GOP/s in int8. Profiling itself costs a few microseconds a node.",
    ]
    for graph in document["graphs"]:
        times = graph["milliseconds"]
        total = sum(times.values())
        what = "a token" if graph["work"] == "token" else f"a prompt of {PROMPT}"
        floor = graph["weight_bytes"] / document["read_bytes_s"] * 1e3
        lines += [
            "",
            f"## {graph['precision']}, {what}: {total:.2f} ms",
            "",
            f"`{graph['graph']}`; reading its {graph['weight_bytes'] / 1e6:.0f} MB of weights takes {floor:.1f} ms.",
            "",
            "| operator, layer | ms | share |",
            "|---|---|---|",
            *(f"| {key} | {ms:.2f} | {ms / total:.0%} |" for key, ms in times.items() if ms >= 0.005 * total),
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
