"""The document of a run: conditions, every contender's figures, and the goals."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from measure.processor import processor_facts

from andrea_export.runtime.bench import decoded_bytes
from andrea_export.runtime.machine import MachineLimits
from peers.contender import Contender
from peers.contenders import Peer
from peers.environments import TRAINED_LENGTH, TRAINED_ROWS
from peers.prepare import CHECKPOINT
from peers.report import goals_of
from peers.rounds import measure


def run_of(
    peers: Sequence[Peer], precisions: Sequence[str], folder: Path, *, num_rounds: int, threads: int
) -> dict[str, Any]:
    """Measures every precision in turn."""
    begin, load_before = time.perf_counter(), os.getloadavg()
    measured: list[Contender] = []
    limits: list[MachineLimits] = []
    for precision in precisions:
        measured += measure(peers, precision, folder, num_rounds=num_rounds, threads=threads, limits=limits)
    document: dict[str, Any] = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "machine": processor_facts(),
        "threads": threads,
        "rounds": num_rounds,
        "trained": {"checkpoint": CHECKPOINT.name, "prompts": TRAINED_ROWS, "longest": TRAINED_LENGTH},
        "minutes": (time.perf_counter() - begin) / 60,
        "load_before": load_before,
        "load_after": os.getloadavg(),
        "limits": {
            entry.name: statistics.median(getattr(one, entry.name) for one in limits)
            for entry in fields(MachineLimits)
        },
        "limits_of_each_round": [asdict(one) for one in limits],
        "decoded_bytes": {
            precision: decoded_bytes(folder / "bundle" / f"ort-cpu-{precision}.onnx")
            for precision in precisions
        },
        "contenders": [one.row() for one in measured],
    }  # fmt: skip
    return {**document, "goals": goals_of(document)}
