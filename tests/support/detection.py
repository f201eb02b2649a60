"""One round of detection: a model, its clean graph and graphs with planted faults, through every comparator.

Owns how each comparator is asked and what its answer is read as; ``bench_detection.py`` owns what is asked and the
tables. The comparators:

    andrea-export            ``andrea-export diff`` of torch in fp64 and the ONNX file, default policy
    polygraphy outputs       Polygraphy's Comparator on the graph's outputs, its default tolerances
    polygraphy layers        the same on every layer: those of ``--onnx-outputs mark all`` that the reference has too
    polygraphy our budgets   the same with our derived max_abs budget of each layer as its absolute tolerance

All four are given the same files and the same fp64 reference. Polygraphy's "first layer" is the first in model order
whose comparison failed.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx

from andrea_export.compare.inputs import Case, Inputs
from andrea_export.compare.runs import run_case
from andrea_export.compare.sources.onnx_source import OnnxSource
from andrea_export.compare.sources.torch_source import TorchSource
from andrea_export.core.errors import RunError
from andrea_export.core.names import graph_outputs, layer_names
from andrea_export.core.precision import PRECISIONS
from andrea_export.core.progress import Silent
from andrea_export.graph.canonical.export import export_canonical
from andrea_export.judge.verdicts import Terms
from andrea_export.report.schema import Report
from andrea_export.sessions.onnxruntime import OnnxSession
from andrea_export.sessions.torch_reference import TorchSession
from andrea_export.validation.comparison import diff
from andrea_export.weights.load import LoadedModel
from support.planted import Planting
from support.polygraphy_comparison import Answer, Arrays, polygraphy_answer

OURS = "andrea-export"
POLYGRAPHY_OUTPUTS, POLYGRAPHY_LAYERS, POLYGRAPHY_BUDGETS = (
    "polygraphy outputs",
    "polygraphy layers",
    "polygraphy our budgets",
)
COMPARATORS = (OURS, POLYGRAPHY_OUTPUTS, POLYGRAPHY_LAYERS, POLYGRAPHY_BUDGETS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One graph through every comparator; ``logits_moved`` is the largest error of a logit in the graph as it ships."""

    planting: Planting | None
    logits_moved: float
    logits_budget: float
    answers: Mapping[str, Answer]

    @property
    def matters(self) -> bool:
        """Whether some logit is off by more than its budget, or is no number."""
        return not self.logits_moved <= self.logits_budget


@dataclass(slots=True, kw_only=True)
class Subject:
    """A model, its clean file, and where to put the others."""

    loaded: LoadedModel
    folder: Path
    clean: Path

    def source(self, path: Path, name: str) -> OnnxSource:
        """One of its files as a candidate."""
        return OnnxSource(
            path, self.loaded.config, self.loaded.origin, precision=PRECISIONS["fp32"], name=name, provenance={}
        )

    def reference(self) -> TorchSource:
        """Torch in fp64."""
        return TorchSource(self.loaded.model, self.loaded.origin, precision="fp64", provenance={})


@contextmanager
def subject_of(loaded: LoadedModel) -> Iterator[Subject]:
    """The model exported into a folder that goes away at the end."""
    with tempfile.TemporaryDirectory(prefix="detection-") as name:
        folder = Path(name)
        yield Subject(loaded=loaded, folder=folder, clean=export_canonical(loaded, folder))


def faults_found(
    subject: Subject, plantings: Sequence[Planting], cases: Sequence[Case], *, polygraphy: bool = True
) -> Iterator[Outcome]:
    """Every planting through every comparator; one comparison of ours for all, so that the reference runs once."""
    paths = []
    for index, planting in enumerate(plantings):
        model = onnx.load(subject.clean)
        planting.into(model)
        path = subject.folder / f"planted-{index}.onnx"
        onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data")
        paths.append(path)
    sources = [subject.source(path, str(index)) for index, path in enumerate(paths)]
    report = diff(subject.reference(), sources, Inputs(cases=tuple(cases)), Terms(), progress=Silent())
    truth = _truth(subject, cases)
    for index, (planting, path) in enumerate(zip(plantings, paths, strict=True)):
        yield _outcome(subject, report, str(index), planting, path, cases, truth, polygraphy=polygraphy)
        path.unlink()
        path.with_name(f"{path.name}.data").unlink(missing_ok=True)


def clean_run(
    subject: Subject, cases: Sequence[Case], *, num_threads: int, level: str, polygraphy: bool = True
) -> Outcome:
    """The untouched graph under one setting of onnxruntime."""
    with _session_options(num_threads, level):
        source = subject.source(subject.clean, "clean")
        report = diff(subject.reference(), [source], Inputs(cases=tuple(cases)), Terms(), progress=Silent())
        truth = _truth(subject, cases)
        return _outcome(subject, report, "clean", None, subject.clean, cases, truth, polygraphy=polygraphy)


def _outcome(
    subject: Subject,
    report: Report,
    name: str,
    planting: Planting | None,
    path: Path,
    cases: Sequence[Case],
    truth: Mapping[str, Arrays],
    *,
    polygraphy: bool,
) -> Outcome:
    candidate = next(entry for entry in report.candidates if entry.name == name)
    budgets = {row.name: row.budget.get("max_abs", 0.0) for row in report.layers if row.candidate == name}
    layers = tuple(layer_names(subject.loaded.config))
    answers = {OURS: Answer(failed=candidate.verdict == "fail", layer=candidate.first_failure)}
    shipped = _run(subject, path, cases, ())
    moved = _largest(truth, shipped, "logits")
    if polygraphy:
        tapped = _run(subject, path, cases, layers)
        outputs = [spec.name for spec in graph_outputs(subject.loaded.config)]
        answers[POLYGRAPHY_OUTPUTS] = polygraphy_answer(truth, shipped, outputs)
        answers[POLYGRAPHY_LAYERS] = polygraphy_answer(truth, tapped, layers)
        answers[POLYGRAPHY_BUDGETS] = polygraphy_answer(truth, tapped, layers, budgets)
    return Outcome(planting=planting, logits_moved=moved, logits_budget=budgets.get("logits", 0.0), answers=answers)


def _truth(subject: Subject, cases: Sequence[Case]) -> dict[str, Arrays]:
    """Torch in fp64: case → every layer, computed here and not by the comparison that is judged."""
    layers = tuple(layer_names(subject.loaded.config))
    found: dict[str, Any] = {}
    with TorchSession(subject.loaded.model, precision="fp64", layers=layers) as session:
        for case in cases:
            found[case.name] = run_case(session, subject.loaded.config, case, found, np.dtype(np.float64))
    return found


def _run(subject: Subject, path: Path, cases: Sequence[Case], taps: Sequence[str]) -> dict[str, Arrays]:
    """The file under onnxruntime; a case that it refuses is absent."""
    found: dict[str, Any] = {}
    try:
        with OnnxSession(path, taps=taps) as session:
            for case in cases:
                found[case.name] = run_case(session, subject.loaded.config, case, found, np.dtype(np.float32))
    except RunError:
        return found
    return found


def _largest(truth: Mapping[str, Arrays], found: Mapping[str, Arrays], name: str) -> float:
    largest = 0.0
    for case, layers in truth.items():
        if case not in found or found[case][name].shape != layers[name].shape:
            return math.inf
        difference = float(np.abs(found[case][name].astype(np.float64) - layers[name]).max())
        largest = max(largest, math.inf if math.isnan(difference) else difference)
    return largest


@contextmanager
def _session_options(num_threads: int, level: str) -> Iterator[None]:
    """Every session opened in the block has so many threads and this level of graph optimisation."""
    import onnxruntime

    plain = onnxruntime.SessionOptions
    levels = {
        "none": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
        "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
        "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    }

    def options() -> Any:
        made = plain()
        made.intra_op_num_threads = num_threads
        made.graph_optimization_level = levels[level]
        return made

    with patch.object(onnxruntime, "SessionOptions", options):
        yield
