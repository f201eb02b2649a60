"""What the detection benchmark says: each comparator's counts, and the page made of them. Measures nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from support.detection import COMPARATORS
from support.planted import FAULTS

PASS, FAIL = "pass", "fail"  # an answer is one of these, or the first layer at fault
Entry = dict[str, Any]
"""One graph: what was planted in it (or how it was run), what that did to its logits, and each comparator's answer."""

_INTRODUCTION = """\
# Detection of planted faults

Made by `scripts/bench_detection.py`; every graph is in the JSON file beside this one. A fault *matters* if it moves
some logit by more than the logits' budget. *Named* counts the caught faults whose first layer at fault is the planted
one. Every comparator was given the same files, the same inputs and the same fp64 reference.

*andrea-export* is `diff` with its default policy. *polygraphy outputs* is Polygraphy's comparison of the graph's
outputs with the tolerances of `polygraphy run` (1e-5, absolute or relative); *polygraphy layers* the same of every
layer (`--onnx-outputs mark all`); *polygraphy our budgets* the same with the layer budgets that `diff` derived.
"""


def summary_of(comparator: str, faults: Sequence[Entry], sound: Sequence[Entry]) -> Entry:
    """One comparator's counts over the graphs it was given."""
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


def markdown_of(result: Mapping[str, Any]) -> str:
    """The page: a line a comparator, a line a kind of fault, a line a model, and the conditions."""
    conditions = result["conditions"]
    lines = [
        *_INTRODUCTION.splitlines(),
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
    lines += [
        "",
        "## By kind of fault",
        "",
        "Of the faults that matter: caught, and of those named, by each comparator.",
        "",
        *_table("fault", [(fault.name, _entries(result["faults"], "fault", fault.name)) for fault in FAULTS]),
        "",
        "## By model",
        "",
        *_table("model", [(name, _entries(result["faults"], "subject", name)) for name in _subjects(result)]),
        "",
        "Sound runs and the false alarms of each comparator:",
        "",
        f"| model | sound runs | {' | '.join(COMPARATORS)} |",
        f"| --- | --- |{' --- |' * len(COMPARATORS)}",
        *(
            _alarms(name, runs)
            for name in _subjects(result)
            if (runs := _entries(result["sound_runs"], "subject", name))
        ),
        "",
        f"Conditions: {conditions['num_cores']} cores, {conditions['cpu_seconds']} s of CPU; {_versions(conditions)}.",
    ]
    return "\n".join(lines) + "\n"


def _table(head: str, rows: Sequence[tuple[str, Sequence[Entry]]]) -> Iterator[str]:
    """A line a row: graphs, those that matter, and for each comparator ``caught / named``."""
    yield f"| {head} | graphs | matter | {' | '.join(COMPARATORS)} |"
    yield f"| --- | --- | --- |{' --- |' * len(COMPARATORS)}"
    for name, entries in rows:
        if entries:
            summaries = [summary_of(comparator, entries, ()) for comparator in COMPARATORS]
            cells = [f"{entry['num_caught']} / {entry['num_named']}" for entry in summaries]
            yield f"| {name} | {len(entries)} | {summaries[0]['num_that_matter']} | {' | '.join(cells)} |"


def _alarms(name: str, runs: Sequence[Entry]) -> str:
    counts = [str(summary_of(comparator, (), runs)["num_false_alarms"]) for comparator in COMPARATORS]
    return f"| {name} | {len(runs)} | {' | '.join(counts)} |"


def _entries(entries: Sequence[Entry], key: str, value: str) -> list[Entry]:
    return [entry for entry in entries if entry[key] == value]


def _subjects(result: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(entry["subject"] for entry in result["faults"]))


def _versions(conditions: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in conditions["versions"].items())


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.1%})" if whole else "0"
