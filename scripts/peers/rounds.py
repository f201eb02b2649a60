"""The document of a run: the contenders of each precision, measured in alternating rounds, then their logits."""

import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measure.results import processor_facts

from andrea_export.compare.language.figures import agreement
from andrea_export.runtime.bench import decoded_bytes
from andrea_export.runtime.machine import MachineLimits, measure_limits
from peers.contender import Contender, start
from peers.prepare import CHECKPOINT, TRAINED, TRAINED_LENGTH, TRAINED_ROWS, Peer
from peers.report import goals_of

PREFILLS = {"first_token_32": (1, 32), "prefill_128": (1, 128), "prefill_1024": (1, 1023), "prefill_8x128": (8, 128)}
SHORT = 128
"""Prompts up to here are asked for twice, and the second answer counts: what a neighbour left in the processor's caches
would be a good part of the first."""
PAUSE_S = 0.5
"""Before each contender's turn: some runtimes' threads wait for their next run at full speed, for up to a tenth of a
second, on the cores of whoever comes next."""
PROMPT, DECODED = 32, 128


def measure(
    peers: Sequence[Peer], precision: str, folder: Path, *, num_rounds: int, threads: int, limits: list[MachineLimits]
) -> list[Contender]:
    """All contenders of one precision, started one after the other, then measured in turns.

    What the machine can do is measured in every round too, into ``limits``: on a shared one it comes and goes.
    """
    contenders = [start(peer, precision, folder, folder, threads) for peer in peers if precision in peer.variants]
    try:
        for one in contenders:
            one.attempt("load", partial(_loaded, one))
            one.attempt("warm", partial(_ask_all, one, keep=False))
        for number in range(num_rounds):
            print(f"{precision}: round {number + 1} of {num_rounds}", file=sys.stderr)
            limits.append(measure_limits(threads))
            # The order turns by one every round, so that nobody always follows the same neighbour.
            turn = number % len(contenders)
            for one in [*contenders[turn:], *contenders[:turn]]:
                one.attempt("measure", partial(_ask_all, one, keep=True))
        for one in contenders:
            one.attempt("memory", partial(_keep_memory, one))
            one.attempt_accuracy("seeded weights", partial(_keep_accuracy, one, one, folder, "seeded"))
    finally:
        for one in contenders:
            one.stop()
    for one in contenders:
        one.attempt_accuracy("trained model", partial(_keep_trained, one, folder, threads))
    return contenders


def _keep_trained(one: Contender, folder: Path, threads: int) -> None:
    """The same contender's accuracy on the trained checkpoint, in another process. Raises RuntimeError."""
    other = start(one.peer, one.precision, folder, folder / TRAINED, threads)
    try:
        other.hear()
        _keep_accuracy(one, other, folder / TRAINED, "trained")
    finally:
        other.stop()


def _loaded(one: Contender) -> None:
    answer = one.hear()
    one.load_s, one.versions = answer["load_s"], answer["versions"]


def _ask_all(one: Contender, *, keep: bool) -> None:
    """Every figure once; kept, or only to warm up."""
    time.sleep(PAUSE_S)
    for name, (rows, length) in PREFILLS.items():
        answer = one.ask(f"prefill {rows} {length}")
        if rows * length <= SHORT:
            answer = one.ask(f"prefill {rows} {length}")
        if keep:
            one.figures.setdefault(name, []).append(answer["ms"])
    answer = one.ask(f"decode {PROMPT} {DECODED}")
    if keep:
        one.figures.setdefault("decode", []).append(answer["tokens_s"])


def _keep_memory(one: Contender) -> None:
    one.figures["peak"] = [one.ask("memory")["peak_bytes"]]


def _keep_accuracy(one: Contender, asked: Contender, place: Path, key: str) -> None:
    """How far the next-token logits after the prompts in ``place`` are from torch's in fp32."""
    file = place / f"logits-{asked.peer.module}-{asked.precision}.npy"
    asked.ask(f"logits {file}")
    expected, found = np.load(place / "reference.npy"), np.load(file)
    # A peer may have rounded the vocabulary up; what it added is no token.
    found = found[:, : expected.shape[1]]
    got = agreement(expected, found)
    largest = float(np.abs(expected - found).max())
    one.accuracy[key] = {"kl_mean": got.kl_mean, "top1": got.top1, "max_abs": largest}


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
