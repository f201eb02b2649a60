"""One model's faults and sound runs through every comparator, as entries of the table."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from andrea_export.compare.inputs import Case, cases_from_tokens, seeded_cases
from andrea_model.config import AndreaConfig
from support.detection import Outcome, Subject, clean_run, faults_found, subject_of
from support.detection_benchmark.result import result_of, write
from support.detection_benchmark.series import Series, all_series
from support.detection_tables import FAIL, PASS, Entry

LEVELS, THREADS = ("none", "basic", "extended", "all"), (1, 2, 4)
SHAPES = ((1, 2), (1, 17), (2, 33), (4, 64), (8, 24), (1, 300), (3, 128), (1, 1023))
"""Rows and tokens of the sound runs that are not the default cases."""
NUM_DEFAULT_SEEDS = 18


def measure(output: Path, only: str | None, *, quick: bool, conditions: Mapping[str, Any]) -> None:
    """Every series, or those of one part; written after every model, so that a long run can be looked at.

    ``conditions`` are those it is made under, asked for before anything is measured.
    """
    torch.set_num_threads(1)  # of the reference; the candidates' threads are varied
    begin, begin_cpu = time.perf_counter(), time.process_time()
    faults: list[Entry] = []
    sound: list[Entry] = []
    for series in all_series(quick=quick):
        with subject_of(series.loaded) as subject:
            if series.sound_every and only in (None, series.sound_part):
                sound += _sound_entries(series, subject, quick=quick)
            if only in (None, series.part):
                faults += _fault_entries(series, subject)
        spent = {"seconds": round(time.perf_counter() - begin), "cpu_seconds": round(time.process_time() - begin_cpu)}
        write(output, result_of({**conditions, **spent}, faults, sound))


def _fault_entries(series: Series, subject: Subject) -> Iterator[Entry]:
    """One entry for each fault of the series."""
    cases = seeded_cases(subject.loaded.config)
    chosen, size = series.chosen, series.group
    for start in range(0, len(chosen), size):
        group = chosen[start : start + size]
        for outcome in faults_found(subject, group, cases):
            planting = outcome.planting
            assert planting is not None
            yield {
                "subject": series.name,
                "fault": planting.fault,
                "layer": planting.layer,
                "size": planting.size,
                **_logits(outcome),
                "answers": _answers(outcome),
            }
        sys.stderr.write(f"{series.name}: {min(start + size, len(chosen))} of {len(chosen)} faults\n")


def _sound_entries(series: Series, subject: Subject, *, quick: bool) -> Iterator[Entry]:
    """One entry for each input and setting of onnxruntime that the series asks for."""
    settings = list(itertools.product(LEVELS, THREADS))
    combinations = [(label, cases, *setting) for label, cases in _inputs(subject.loaded.config) for setting in settings]
    combinations = combinations[:: series.sound_every * (40 if quick else 1)]
    for index, (label, cases, level, num_threads) in enumerate(combinations):
        outcome = clean_run(subject, cases, num_threads=num_threads, level=level)
        yield {
            "subject": series.name,
            "inputs": label,
            "num_threads": num_threads,
            "optimisation": level,
            **_logits(outcome),
            "answers": _answers(outcome),
        }
        if index % 50 == 49:
            sys.stderr.write(f"{series.name}: {index + 1} of {len(combinations)} sound runs\n")


def _logits(outcome: Outcome) -> Entry:
    moved = outcome.logits_moved
    return {
        "logits_moved": moved if np.isfinite(moved) else str(moved),
        "logits_budget": outcome.logits_budget,
        "matters": outcome.matters,
    }


def _answers(outcome: Outcome) -> dict[str, str]:
    return {name: (answer.layer or FAIL) if answer.failed else PASS for name, answer in outcome.answers.items()}


def _inputs(config: AndreaConfig) -> Iterator[tuple[str, tuple[Case, ...]]]:
    for seed in range(NUM_DEFAULT_SEEDS):
        yield f"seed {seed}", seeded_cases(config, seed=seed)
    for num_rows, length in SHAPES:
        ids = np.random.default_rng(length).integers(0, config.vocab_size, (num_rows, length))
        yield f"{num_rows} x {length} tokens", cases_from_tokens(ids.tolist())
