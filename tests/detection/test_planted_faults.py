"""A handful of planted faults through the comparison: caught, in their layer; and every fault can be planted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from andrea_export.compare.inputs import cases_from_tokens, seeded_cases
from andrea_export.weights.load import LoadedModel, load_model
from support.detection import OURS, POLYGRAPHY_BUDGETS, Subject, clean_run, faults_found, subject_of
from support.detection_benchmark.result import as_json, goals_met, joined, result_of
from support.detection_tables import PASS, markdown_of, summary_of
from support.model_traits import with_outlier_channels
from support.paths import FIXTURES
from support.planted import FAULTS, Planting, edit, plantings

HANDFUL = (
    "weight quantised per column",
    "bias shifted",
    "norm without its mean",
    "erf for tanh",
    "heads of the query permuted",
    "stale cache",
    "residual of an earlier stream",
    "stored as bf16",
    "fp16 overflow",
    "positions count padding",
    "mask forgets padding",
    "head not tied",
)


@pytest.fixture(scope="module")
def austen() -> LoadedModel:
    return load_model(preset=None, checkpoint=FIXTURES / "austen.safetensors", seed=0)


@pytest.fixture(scope="module")
def subject(austen: LoadedModel) -> Subject:
    with subject_of(austen) as made:
        yield made


def handful(austen: LoadedModel) -> list[Planting]:
    """The first planting of each of the kinds, in block 2."""
    found = {planting.fault: planting for planting in reversed(list(plantings(austen.config, [2])))}
    return [found[name] for name in HANDFUL]


def test_a_handful_is_caught_in_the_planted_layer(subject: Subject, austen: LoadedModel) -> None:
    cases = seeded_cases(austen.config)
    outcomes = list(faults_found(subject, handful(austen), cases, polygraphy=False))
    assert [str(o.planting) for o in outcomes if not o.answers[OURS].failed] == []
    wrong = [(str(o.planting), o.answers[OURS].layer) for o in outcomes if o.answers[OURS].layer != o.planting.layer]
    assert wrong == []
    assert sum(outcome.matters for outcome in outcomes) >= 10


def test_polygraphy_is_asked_about_the_same_graph(subject: Subject, austen: LoadedModel) -> None:
    (outcome,) = faults_found(subject, handful(austen)[:1], cases_from_tokens([[5, 17, 42]]))
    assert outcome.planting is not None
    assert outcome.answers[POLYGRAPHY_BUDGETS].layer == outcome.planting.layer
    assert all(answer.failed for answer in outcome.answers.values())


@pytest.mark.parametrize(("num_threads", "level"), [(1, "none"), (2, "all")])
def test_a_sound_graph_passes(subject: Subject, num_threads: int, level: str) -> None:
    cases = cases_from_tokens([list(range(40, 60)), list(range(3))])
    outcome = clean_run(subject, cases, num_threads=num_threads, level=level, polygraphy=False)
    assert not outcome.answers[OURS].failed and not outcome.matters
    assert 0 < outcome.logits_moved < outcome.logits_budget


def test_a_sound_graph_with_outlier_channels_passes(austen: LoadedModel) -> None:
    from dataclasses import replace

    with subject_of(replace(austen, model=with_outlier_channels(austen.model))) as outliers:
        cases = seeded_cases(austen.config)
        assert not clean_run(outliers, cases, num_threads=1, level="all", polygraphy=False).answers[OURS].failed


def test_every_fault_changes_the_graph_and_leaves_it_loadable(subject: Subject, austen: LoadedModel) -> None:
    from andrea_export.sessions.onnxruntime import OnnxSession

    clean = onnx.load(subject.clean)
    before = clean.SerializeToString(deterministic=True)
    seen: Counter[str] = Counter()
    for planting in plantings(austen.config, [1]):
        seen[planting.fault] += 1
        if seen[planting.fault] > 1:
            continue
        model = onnx.ModelProto()
        model.CopyFrom(clean)
        planting.into(model)
        assert model.SerializeToString(deterministic=True) != before, planting
        path = subject.folder / "one.onnx"
        onnx.save(model, path)
        with OnnxSession(path) as session:
            assert "logits" in session.output_names
    assert set(seen) == {fault.name for fault in FAULTS} and len(FAULTS) >= 30
    assert sum(1 for _ in plantings(austen.config, range(4))) >= 300


def test_a_fault_that_changes_nothing_is_refused(subject: Subject) -> None:
    model = onnx.load(subject.clean)
    name = "blocks.0.mlp.fc.weight"
    with pytest.raises(ValueError, match="changes nothing"):
        edit.set_weight(model, name, edit.weight(model, name))


def test_the_tables_count_what_is_in_the_graphs(tmp_path: Path) -> None:
    def fault(moved: float, answer: str) -> dict[str, object]:
        return {
            "subject": "trained",
            "fault": FAULTS[0].name,
            "layer": "ln_f",
            "size": 0.0,
            "logits_moved": moved,
            "logits_budget": 1.0,
            "matters": moved > 1.0,
            "answers": {OURS: answer},
        }

    faults = [fault(2.0, "ln_f"), fault(2.0, "logits"), fault(2.0, PASS), fault(0.5, "ln_f"), fault(0.5, PASS)]
    sound = [{"subject": "trained", "answers": {OURS: PASS}}, {"subject": "trained", "answers": {OURS: "logits"}}]
    assert summary_of(OURS, faults, sound) == {
        "num_faults": 5,
        "num_that_matter": 3,
        "num_caught": 2,
        "num_named": 1,
        "num_below_budget": 2,
        "num_below_budget_caught": 1,
        "num_sound_runs": 2,
        "num_false_alarms": 1,
    }
    conditions = {"seconds": 1, "cpu_seconds": 2}
    for name, parts in (("a", (faults, [])), ("b", ([], sound))):
        (tmp_path / f"{name}.json").write_text(as_json(result_of(conditions, *parts)))
    both = joined([tmp_path / "a.json", tmp_path / "b.json"])
    assert both["comparators"][OURS] == summary_of(OURS, faults, sound)
    assert both["conditions"] == {"seconds": 2, "cpu_seconds": 4}
    assert np.isfinite(both["num_fault_kinds"])


def test_the_committed_table_is_that_of_the_committed_graphs_and_meets_the_goals() -> None:
    docs = FIXTURES.parents[1] / "docs" / "measurements"
    result = json.loads((docs / "detection.json").read_text(encoding="utf-8"))
    again = result_of(result["conditions"], result["faults"], result["sound_runs"])
    assert again == result
    assert (docs / "detection.md").read_text(encoding="utf-8") == markdown_of(again)
    ours, *others = again["comparators"].values()
    for other in others:  # all were given the same graphs
        assert (other["num_faults"], other["num_sound_runs"]) == (ours["num_faults"], ours["num_sound_runs"])
        assert other["num_caught"] <= ours["num_caught"] and other["num_false_alarms"] >= ours["num_false_alarms"]
    assert goals_met(ours)
    assert again["num_fault_kinds"] >= 30 and ours["num_faults"] >= 300 and ours["num_sound_runs"] >= 300
