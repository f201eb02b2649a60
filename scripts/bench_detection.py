"""How many planted faults are caught, in which layer, and how often a sound graph is failed: the proof of the proof.

    python scripts/bench_detection.py --output docs/detection [--only faults|subtle|large|sound] [--quick]
    python scripts/bench_detection.py --output docs/detection --join faults.json subtle.json large.json sound.json

Writes OUTPUT.json and OUTPUT.md; ``--join`` makes both from earlier runs. Faults are those of ``planted``; comparators
those of ``detection``. A fault matters if it moves a logit by more than the logits' budget. Goals: every fault that
matters is caught; the layer named is the planted one in at least 99 % of those caught; no sound run fails. Exits with 1
where a goal is missed.

Models: the trained fixture (every fault in the first and the last block), the same with outlier channels and the
untrained andrea-tiny (a quarter of the faults of one block), andrea-120m with outlier channels (a sample: ``large``),
and the trained one again with faults near what rounding does (``subtle``). Every comparator is given every graph.
``--quick`` takes a few faults and runs, for a look.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import checkout  # noqa: F401
import numpy as np
import torch

from andrea_export.bundle.manifest import machine_facts
from andrea_export.compare.inputs import Case, cases_from_tokens, seeded_cases
from andrea_export.core.installed import installed_versions
from andrea_export.weights.load import LoadedModel, load_model
from andrea_model.config import AndreaConfig
from support.detection import COMPARATORS, OURS, Outcome, Subject, clean_run, faults_found, subject_of
from support.detection_tables import FAIL, PASS, Entry, markdown_of, summary_of
from support.model_traits import with_outlier_channels
from support.planted import SUBTLE, Planting, plantings

FIXTURE = Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "austen.safetensors"
GOAL_NAMED = 0.99
LEVELS, THREADS = ("none", "basic", "extended", "all"), (1, 2, 4)
SHAPES = ((1, 2), (1, 17), (2, 33), (4, 64), (8, 24), (1, 300), (3, 128), (1, 1023))
"""Rows and tokens of the sound runs that are not the default cases."""
NUM_DEFAULT_SEEDS = 18
PARTS = ("faults", "subtle", "large", "sound")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One model with the faults that one part of the benchmark plants in it."""

    part: str
    name: str
    loaded: LoadedModel
    chosen: Sequence[Planting]
    group: int = 48
    """How many graphs are compared at once, over one run of the reference."""
    sound_every: int = 0
    """One in so many of the sound runs is made; 0 is none. 25 takes every second input, each under another setting."""

    @property
    def sound_part(self) -> str:
        """The part its sound runs belong to."""
        return "large" if self.part == "large" else "sound"


def main() -> None:
    """Measures, writes both files, prints the table; exits with 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--join", type=Path, nargs="+", default=[])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    result = _joined(options.join) if options.join else _measured(options)
    _write(options.output, result)
    print(options.output.with_suffix(".md").read_text(encoding="utf-8"))
    raise SystemExit(0 if _goals_met(result["comparators"][OURS]) else 1)


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)  # of the reference; the candidates' threads are varied
    begin, begin_cpu = time.perf_counter(), time.process_time()
    faults: list[Entry] = []
    sound: list[Entry] = []
    result: dict[str, Any] = {}
    for series in _series(quick=options.quick):
        with subject_of(series.loaded) as subject:
            if series.sound_every and options.only in (None, series.sound_part):
                sound += _sound(series, subject, quick=options.quick)
            if options.only in (None, series.part):
                faults += _faults(series, subject)
        conditions = {
            "num_cores": os.cpu_count(),
            "seconds": round(time.perf_counter() - begin),
            "cpu_seconds": round(time.process_time() - begin_cpu),
            "machine": machine_facts(),
            "versions": installed_versions(),
        }
        result = _result(conditions, faults, sound)
        _write(options.output, result)  # after every model, so that a long run can be looked at
    return result


def _joined(files: Sequence[Path]) -> dict[str, Any]:
    """The graphs of several runs together, their seconds added."""
    runs = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    conditions = dict(runs[0]["conditions"])
    for key in ("seconds", "cpu_seconds"):
        conditions[key] = sum(run["conditions"][key] for run in runs)
    faults = [entry for run in runs for entry in run["faults"]]
    return _result(conditions, faults, [entry for run in runs for entry in run["sound_runs"]])


def _result(conditions: Mapping[str, Any], faults: list[Entry], sound: list[Entry]) -> dict[str, Any]:
    return {
        "conditions": dict(conditions),
        "num_fault_kinds": len({entry["fault"] for entry in faults}),
        "comparators": {name: summary_of(name, faults, sound) for name in COMPARATORS},
        "faults": faults,
        "sound_runs": sound,
    }


def _write(output: Path, result: dict[str, Any]) -> None:
    output.with_suffix(".json").write_text(_as_json(result), encoding="utf-8")
    output.with_suffix(".md").write_text(markdown_of(result), encoding="utf-8")


def _as_json(result: dict[str, Any]) -> str:
    """JSON with one graph a line, so that a change of one shows as one line."""
    lists = {key: result[key] for key in ("faults", "sound_runs")}
    head = json.dumps({key: value for key, value in result.items() if key not in lists}, indent=1)
    parts = [
        f' "{key}": [\n' + ",\n".join(f"  {json.dumps(entry)}" for entry in entries) + "\n ]"
        for key, entries in lists.items()
    ]
    return head[: head.rindex("\n}")] + ",\n" + ",\n".join(parts) + "\n}\n"


def _series(*, quick: bool) -> Iterator[Series]:
    austen = load_model(preset=None, checkpoint=FIXTURE, seed=0)
    ends = (0, austen.config.n_layer - 1)
    outliers = replace(austen, model=with_outlier_channels(austen.model))
    tiny = load_model(preset="andrea-tiny", checkpoint=None, seed=1)
    _fill_vectors(tiny)
    rare = 10 if quick else 1
    every = list(plantings(austen.config, ends))
    yield Series(part="faults", name="trained", loaded=austen, chosen=every[::rare], sound_every=1)
    yield Series(
        part="faults",
        name="trained, outliers",
        loaded=outliers,
        chosen=list(plantings(outliers.config, [2]))[:: 4 * rare],
        sound_every=25,
    )
    quarter = list(plantings(tiny.config, [0]))[1 :: 4 * rare]
    yield Series(part="faults", name="andrea-tiny", loaded=tiny, chosen=quarter, sound_every=25)
    subtle = list(plantings(austen.config, ends, SUBTLE))[::rare]
    yield Series(part="subtle", name="trained, subtle", loaded=austen, chosen=subtle)
    if quick:
        return
    large = load_model(preset="andrea-120m", checkpoint=None, seed=1)
    _fill_vectors(large)
    large = replace(large, model=with_outlier_channels(large.model))
    sample = list(plantings(large.config, [5]))[::11]
    yield Series(
        part="large",
        name="andrea-120m, outliers",
        loaded=large,
        chosen=sample,
        group=4,
        sound_every=156,  # two
    )


def _fill_vectors(loaded: LoadedModel) -> None:
    """Gives biases and gains values that matter: GPT-2's initial ones are zeros and ones, where faults would hide."""
    generator = torch.Generator().manual_seed(2)
    for parameter in loaded.model.parameters():
        if parameter.ndim == 1:
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)


def _faults(series: Series, subject: Subject) -> Iterator[Entry]:
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
        print(f"{series.name}: {min(start + size, len(chosen))} of {len(chosen)} faults", file=sys.stderr, flush=True)


def _sound(series: Series, subject: Subject, *, quick: bool) -> Iterator[Entry]:
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
            print(f"{series.name}: {index + 1} of {len(combinations)} sound runs", file=sys.stderr, flush=True)


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


def _goals_met(summary: Entry) -> bool:
    return bool(
        summary["num_caught"] == summary["num_that_matter"]
        and summary["num_named"] >= GOAL_NAMED * summary["num_caught"]
        and summary["num_false_alarms"] == 0
    )


if __name__ == "__main__":
    main()
