"""What a run of the benchmark found, as one document: made, joined, written, held against the goals."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.detection import COMPARATORS
from support.detection_tables import Entry, markdown_of, summary_of

GOAL_NAMED = 0.99


def joined(files: Sequence[Path]) -> dict[str, Any]:
    """The graphs of several runs together, their seconds added."""
    runs = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    conditions = dict(runs[0]["conditions"])
    for key in ("seconds", "cpu_seconds"):
        conditions[key] = sum(run["conditions"][key] for run in runs)
    faults = [entry for run in runs for entry in run["faults"]]
    return result_of(conditions, faults, [entry for run in runs for entry in run["sound_runs"]])


def result_of(conditions: Mapping[str, Any], faults: list[Entry], sound: list[Entry]) -> dict[str, Any]:
    """The document of so many graphs."""
    return {
        "conditions": dict(conditions),
        "num_fault_kinds": len({entry["fault"] for entry in faults}),
        "comparators": {name: summary_of(name, faults, sound) for name in COMPARATORS},
        "faults": faults,
        "sound_runs": sound,
    }


def write(output: Path, result: dict[str, Any]) -> None:
    """The document as JSON and as Markdown."""
    output.with_suffix(".json").write_text(as_json(result), encoding="utf-8")
    output.with_suffix(".md").write_text(markdown_of(result), encoding="utf-8")


def as_json(result: dict[str, Any]) -> str:
    """JSON with one graph a line, so that a change of one shows as one line."""
    lists = {key: result[key] for key in ("faults", "sound_runs")}
    head = json.dumps({key: value for key, value in result.items() if key not in lists}, indent=1)
    parts = [
        f' "{key}": [\n' + ",\n".join(f"  {json.dumps(entry)}" for entry in entries) + "\n ]"
        for key, entries in lists.items()
    ]
    return head[: head.rindex("\n}")] + ",\n" + ",\n".join(parts) + "\n}\n"


def goals_met(summary: Entry) -> bool:
    """Whether every fault that matters is caught, almost all in their layer, and no sound run fails."""
    return bool(
        summary["num_caught"] == summary["num_that_matter"]
        and summary["num_named"] >= GOAL_NAMED * summary["num_caught"]
        and summary["num_false_alarms"] == 0
    )
