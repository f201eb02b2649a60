"""Faults planted in every variant of the architecture: caught, and named by their layer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from andrea_export.compare.inputs import seeded_cases
from andrea_export.weights.load import LoadedModel
from support.detection import OURS, Subject, clean_run, faults_found, subject_of
from support.planted import FAULTS, OF_VARIANTS, plantings

# What differs between variants: their linear layers, norms and head, and what a fused graph makes of them.
KINDS = {
    "weight scaled",
    "weight transposed",
    "bias dropped",
    "gain dropped",
    "beta dropped",
    "epsilon changed",
    "norm without its mean",
    "norm skipped",
    "erf for tanh",
    "embedding rows swapped",
    "final norm without its mean",
    "final norm's gain dropped",
    "logits of one token zeroed",
    "head not tied",
}


@pytest.fixture
def subject(variant: LoadedModel) -> Iterator[Subject]:
    with subject_of(variant) as made:
        yield made


def test_faults_are_caught_in_the_planted_layer(subject: Subject) -> None:
    config = subject.loaded.config
    kinds = [fault for fault in FAULTS if fault.name in KINDS]
    planted = list(plantings(config, [1], [*kinds, *OF_VARIANTS]))
    outcomes = list(faults_found(subject, planted, seeded_cases(config), polygraphy=False))
    assert len(outcomes) == len(planted) >= 20
    assert [str(o.planting) for o in outcomes if not o.answers[OURS].failed] == []
    wrong = [(str(o.planting), o.answers[OURS].layer) for o in outcomes if o.answers[OURS].layer != o.planting.layer]
    assert wrong == []


@pytest.mark.parametrize(("num_threads", "level"), [(1, "none"), (2, "all")])
def test_a_sound_graph_passes(subject: Subject, num_threads: int, level: str) -> None:
    cases = seeded_cases(subject.loaded.config)
    outcome = clean_run(subject, cases, num_threads=num_threads, level=level, polygraphy=False)
    assert not outcome.answers[OURS].failed and not outcome.matters
