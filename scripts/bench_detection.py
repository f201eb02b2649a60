"""How many planted faults are caught, in which layer, and how often a sound graph is failed: the proof of the proof.

    python scripts/bench_detection.py --output docs/detection [--only faults|sound] [--quick] [--full]
    python scripts/bench_detection.py --output docs/detection --join faults.json sound.json

Writes OUTPUT.json and OUTPUT.md; ``--join`` makes both from earlier runs. Faults are those of ``planted``; comparators
those of ``detection``. A fault matters if it moves a logit by more than the logits' budget. Goals: every fault that
matters is caught; the layer named is the planted one in at least 99 % of those caught; no sound run fails. Exits with 1
where a goal is missed.

Subjects: the trained fixture (every fault in the first and the last block), the same with outlier channels and the
untrained andrea-tiny (a quarter of the faults of one block), and with ``--full`` a sample on andrea-120m with outlier
channels. Polygraphy is asked about every eighth graph: its comparison takes several times ours. ``--quick`` takes a few
faults and runs, for a look.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from detection import COMPARATORS, OURS, Outcome, Subject, clean_run, faults_found, subject_of
from model_traits import with_outlier_channels
from planted import FAULTS, Planting, plantings

from andrea_export.bundle import machine_facts
from andrea_export.checkpoint import LoadedModel, load_model
from andrea_export.diff.cases import Case, cases_from_tokens, seeded_cases
from andrea_export.steps import installed_versions
from andrea_model.config import AndreaConfig

FIXTURE = Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "austen.safetensors"
GOAL_NAMED = 0.99
POLYGRAPHY_EVERY = 8
LARGE = 768  # d_model from which a model's weights are gigabytes in all, and only a sample is taken
LEVELS, THREADS = ("none", "basic", "extended", "all"), (1, 2, 4)
SHAPES = ((1, 2), (1, 17), (2, 33), (4, 64), (8, 24), (1, 300), (3, 128), (1, 1023))
"""Rows and tokens of the sound runs that are not the default cases."""
NUM_DEFAULT_SEEDS = 18
PASS, FAIL = "pass", "fail"  # an answer is one of these, or the first layer at fault
Entry = dict[str, Any]


def main() -> None:
    """Measures, writes both files, prints the table; exits with 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", choices=("faults", "sound"))
    parser.add_argument("--join", type=Path, nargs="+", default=[])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--full", action="store_true", help="add the sample on andrea-120m")
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
    for name, loaded, chosen in _subjects(quick=options.quick, full=options.full):
        with subject_of(loaded) as subject:
            if options.only != "sound":
                faults += _faults(name, subject, chosen)
            if options.only != "faults" and subject.loaded.config.d_model < LARGE:
                sound += _sound(name, subject, quick=options.quick)
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
        "comparators": {name: _summary(name, faults, sound) for name in COMPARATORS},
        "faults": faults,
        "sound_runs": sound,
    }


def _write(output: Path, result: dict[str, Any]) -> None:
    output.with_suffix(".json").write_text(_as_json(result), encoding="utf-8")
    output.with_suffix(".md").write_text(_markdown(result), encoding="utf-8")


def _as_json(result: dict[str, Any]) -> str:
    """JSON with one graph a line, so that a change of one shows as one line."""
    lists = {key: result[key] for key in ("faults", "sound_runs")}
    head = json.dumps({key: value for key, value in result.items() if key not in lists}, indent=1)
    parts = [
        f' "{key}": [\n' + ",\n".join(f"  {json.dumps(entry)}" for entry in entries) + "\n ]"
        for key, entries in lists.items()
    ]
    return head[: head.rindex("\n}")] + ",\n" + ",\n".join(parts) + "\n}\n"


def _subjects(*, quick: bool, full: bool) -> Iterator[tuple[str, LoadedModel, list[Planting]]]:
    austen = load_model(preset=None, checkpoint=FIXTURE, seed=0)
    every = list(plantings(austen.config, (0, austen.config.n_layer - 1)))
    yield "trained", austen, every[::40] if quick else every
    one_block = list(plantings(austen.config, [2]))
    outliers = replace(austen, model=with_outlier_channels(austen.model))
    yield "trained, outliers", outliers, one_block[::20] if quick else one_block[::4]
    tiny = load_model(preset="andrea-tiny", checkpoint=None, seed=1)
    _fill_vectors(tiny)
    tiny_faults = list(plantings(tiny.config, [0]))
    yield "andrea-tiny", tiny, tiny_faults[1::20] if quick else tiny_faults[1::4]
    if full:
        large = load_model(preset="andrea-120m", checkpoint=None, seed=1)
        _fill_vectors(large)
        large = replace(large, model=with_outlier_channels(large.model))
        yield "andrea-120m, outliers", large, list(plantings(large.config, [5]))[::9]


def _fill_vectors(loaded: LoadedModel) -> None:
    """Gives biases and gains values that matter: GPT-2's initial ones are zeros and ones, where faults would hide."""
    generator = torch.Generator().manual_seed(2)
    for parameter in loaded.model.parameters():
        if parameter.ndim == 1:
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)


def _faults(name: str, subject: Subject, chosen: Sequence[Planting]) -> Iterator[Entry]:
    cases = seeded_cases(subject.loaded.config)
    size = 4 if subject.loaded.config.d_model >= LARGE else 48
    for start in range(0, len(chosen), size):
        group = chosen[start : start + size]
        for outcome in faults_found(subject, group, cases, ask_polygraphy_every=POLYGRAPHY_EVERY):
            planting = outcome.planting
            assert planting is not None
            yield {
                "subject": name,
                "fault": planting.fault,
                "layer": planting.layer,
                "size": planting.size,
                **_logits(outcome),
                "answers": _answers(outcome),
            }
        print(f"{name}: {min(start + size, len(chosen))} of {len(chosen)} faults", file=sys.stderr, flush=True)


def _sound(name: str, subject: Subject, *, quick: bool) -> Iterator[Entry]:
    settings = list(itertools.product(LEVELS, THREADS))
    combinations = [(label, cases, *setting) for label, cases in _inputs(subject.loaded.config) for setting in settings]
    if name != "trained":
        combinations = combinations[::25]  # every second input, each under another setting
    if quick:
        combinations = combinations[::40]
    for index, (label, cases, level, num_threads) in enumerate(combinations):
        asked = index % POLYGRAPHY_EVERY == 0
        outcome = clean_run(subject, cases, num_threads=num_threads, level=level, polygraphy=asked)
        yield {
            "subject": name,
            "inputs": label,
            "num_threads": num_threads,
            "optimisation": level,
            **_logits(outcome),
            "answers": _answers(outcome),
        }
        if index % 50 == 49:
            print(f"{name}: {index + 1} of {len(combinations)} sound runs", file=sys.stderr, flush=True)


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


# --- the tables -------------------------------------------------------------------------------------------------


def _summary(comparator: str, faults: Sequence[Entry], sound: Sequence[Entry]) -> Entry:
    asked = [entry for entry in faults if comparator in entry["answers"]]
    matter = [entry for entry in asked if entry["matters"]]
    caught = [entry for entry in matter if entry["answers"][comparator] != PASS]
    small = [entry for entry in asked if not entry["matters"]]
    runs = [entry for entry in sound if comparator in entry["answers"]]
    return {
        "num_faults": len(asked),
        "num_that_matter": len(matter),
        "num_caught": len(caught),
        "num_named": sum(entry["answers"][comparator] == entry["layer"] for entry in caught),
        "num_below_budget": len(small),
        "num_below_budget_caught": sum(entry["answers"][comparator] != PASS for entry in small),
        "num_sound_runs": len(runs),
        "num_false_alarms": sum(entry["answers"][comparator] != PASS for entry in runs),
    }


def _goals_met(summary: Entry) -> bool:
    return bool(
        summary["num_caught"] == summary["num_that_matter"]
        and summary["num_named"] >= GOAL_NAMED * summary["num_caught"]
        and summary["num_false_alarms"] == 0
    )


def _markdown(result: dict[str, Any]) -> str:
    conditions = result["conditions"]
    lines = [
        "# Detection of planted faults",
        "",
        "Made by `scripts/bench_detection.py`; every graph is in the JSON file beside this one. A fault *matters* if",
        "it moves some logit by more than the logits' budget. *Named* counts the caught faults whose first layer at",
        "fault is the planted one. Polygraphy was asked about every eighth graph, and given the same fp64 reference.",
        "",
        "| comparator | faults that matter | caught | named the planted layer | smaller faults caught | sound runs "
        "| false alarms |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, summary in result["comparators"].items():
        lines.append(
            f"| {name} | {summary['num_that_matter']} | {_share(summary['num_caught'], summary['num_that_matter'])} "
            f"| {_share(summary['num_named'], summary['num_caught'])} "
            f"| {summary['num_below_budget_caught']} of {summary['num_below_budget']} "
            f"| {summary['num_sound_runs']} | {summary['num_false_alarms']} |"
        )
    lines += ["", "## By kind of fault", "", "| fault | graphs | matter | caught | named |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for fault in FAULTS:
        entries = [entry for entry in result["faults"] if entry["fault"] == fault.name]
        matter = [entry for entry in entries if entry["matters"]]
        caught = [entry for entry in matter if entry["answers"][OURS] != PASS]
        named = [entry for entry in caught if entry["answers"][OURS] == entry["layer"]]
        if entries:
            lines.append(f"| {fault.name} | {len(entries)} | {len(matter)} | {len(caught)} | {len(named)} |")
    versions = ", ".join(f"{name} {version}" for name, version in conditions["versions"].items())
    lines += [
        "",
        "## By model",
        "",
        "| model | faults that matter | caught | named | sound runs | false alarms |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_by_subject(result, name) for name in dict.fromkeys(entry["subject"] for entry in result["faults"])),
        "",
        f"Conditions: {conditions['num_cores']} cores, {conditions['cpu_seconds']} s of CPU; {versions}.",
    ]
    return "\n".join(lines) + "\n"


def _by_subject(result: dict[str, Any], name: str) -> str:
    matter = [entry for entry in result["faults"] if entry["subject"] == name and entry["matters"]]
    caught = [entry for entry in matter if entry["answers"][OURS] != PASS]
    named = [entry for entry in caught if entry["answers"][OURS] == entry["layer"]]
    sound = [entry for entry in result["sound_runs"] if entry["subject"] == name]
    alarms = sum(entry["answers"][OURS] != PASS for entry in sound)
    return f"| {name} | {len(matter)} | {len(caught)} | {len(named)} | {len(sound)} | {alarms} |"


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.1%})" if whole else "0"


if __name__ == "__main__":
    main()
