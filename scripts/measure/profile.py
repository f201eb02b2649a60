"""Where the time of a CPU graph goes, from onnxruntime's own profile; and how that is written down."""

import json
import re
import statistics
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from andrea_export.bundle.manifest import Bundle
from andrea_export.core.precision import OrtPrecision
from andrea_export.runtime.bench import decoded_bytes
from andrea_export.runtime.open import shared_tuning
from andrea_export.runtime.shared_cache import SharedCacheDecoder
from andrea_export.sessions.onnxruntime import open_raw
from andrea_export.targets.ort_cpu.files import LIBRARY, OrtCpuFiles, files_of

TOKENS, PROMPT, PROMPT_RUNS = 100, 128, 10


def profiles_of(bundle: Bundle, precision: OrtPrecision, threads: int) -> list[dict[str, Any]]:
    """One token and one prompt, each with what every operator and layer took."""
    files = files_of(precision)
    return [
        {
            "precision": precision,
            "work": work,
            "graph": files.graph,
            "weight_bytes": decoded_bytes(bundle.path / files.graph),
            "milliseconds": _profile(bundle, files, threads, work=work, runs=runs),
        }
        for work, runs in (("token", TOKENS), ("prompt", PROMPT_RUNS))
    ]


def _profile(bundle: Bundle, files: OrtCpuFiles, threads: int, *, work: str, runs: int) -> dict[str, float]:
    """Operator and layer → milliseconds a run, most first."""
    library = bundle.path / LIBRARY if files.weights is not None and bundle.manifest.cpu_library else None
    tuning = shared_tuning(files, threads, library=library)
    with tempfile.TemporaryDirectory(prefix="andrea-") as folder:
        session = open_raw(bundle.path / files.graph, "cpu", tuning=replace(tuning, profile=Path(folder) / "profile"))
        decoder = SharedCacheDecoder(name=files.graph, session=session, config=bundle.config)
        if work == "token":
            generation = decoder.begin([[1] * 32], 32 + runs)
            for token in range(runs):
                generation.step([token])
        else:
            for _ in range(runs):
                decoder.begin([list(range(PROMPT))], PROMPT).close()
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    durations: dict[str, list[int]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            layer = re.sub(r"^blocks\.\d+\.", "", event["name"].removesuffix("_kernel_time"))
            durations[f"{event['args']['op_name']} {layer}"].append(event["dur"])
    each = {key: statistics.median(times) * (len(times) / runs) / 1e3 for key, times in durations.items()}
    return dict(sorted(each.items(), key=lambda entry: -entry[1]))


def markdown_of(document: dict[str, Any]) -> str:
    """The document with a table for each graph; what takes less than half a percent is left out."""
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
