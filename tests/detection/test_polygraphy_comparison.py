"""Polygraphy asked in this process says what its command says, of a sound graph and of one with a planted fault."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from andrea_export.compare.inputs import Case, cases_from_tokens
from andrea_export.compare.runs import run_case
from andrea_export.core.names import graph_outputs, layer_names
from andrea_export.sessions.base import zero_cache
from andrea_export.sessions.onnxruntime import OnnxSession
from andrea_export.sessions.torch_reference import TorchSession
from andrea_export.weights.load import LoadedModel, load_model
from support.detection import Subject, subject_of
from support.planted import plantings
from support.polygraphy_comparison import as_onnxruntime_gives_it, polygraphy_answer

COMMAND = (sys.executable, "-c", "import sys; from polygraphy.tools import main; sys.exit(main())", "run")


@pytest.fixture(scope="module")
def tiny() -> LoadedModel:
    return load_model(preset="andrea-tiny", checkpoint=None, seed=1)


@pytest.fixture(scope="module")
def subject(tiny: LoadedModel) -> Subject:
    with subject_of(tiny) as made:
        yield made


@pytest.fixture(scope="module")
def case() -> Case:
    return cases_from_tokens([[5, 17, 42, 7, 9, 11, 3]])[0]


def planted(subject: Subject, fault: str) -> Path:
    model = onnx.load(subject.clean)
    next(planting for planting in plantings(subject.loaded.config, [1]) if planting.fault == fault).into(model)
    path = subject.folder / "planted.onnx"
    onnx.save(model, path)
    return path


def command_failed(subject: Subject, path: Path, case: Case, truth: dict[str, np.ndarray], *more: str) -> set[str]:
    """The outputs that ``polygraphy run`` failed, its exit code held against them."""
    from polygraphy.comparator import IterationResult, RunResults
    from polygraphy.json import save_json

    config = subject.loaded.config
    cache = zero_cache(config, batch=1, past=0, dtype=np.dtype(np.float32))
    inputs, outputs = subject.folder / "inputs.json", subject.folder / "outputs.json"
    save_json([{**case.feeds, **cache}], str(inputs))
    values = {name: as_onnxruntime_gives_it(value) for name, value in truth.items()}
    results = RunResults()
    results.append(("torch", [IterationResult(outputs=values, runtime=0.0, runner_name="torch")]))
    results.save(str(outputs))
    done = subprocess.run(
        [*COMMAND, str(path), "--onnxrt", "--load-inputs", str(inputs), "--load-outputs", str(outputs), *more],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    failed = re.search(r"FAILED \| (?:\S+ \| )?Mismatched outputs: \[(.*)\]", done.stdout + done.stderr)
    names = set(re.findall(r"'([^']+)'", failed[1])) if failed else set()
    assert (done.returncode == 0) == (not names), done.stdout + done.stderr
    return names


@pytest.mark.parametrize(
    ("fault", "every_layer"),
    [(None, True), ("weight quantised per tensor", True), ("weight quantised per tensor", False)],
)
def test_in_process_and_the_command_give_one_verdict(
    subject: Subject, case: Case, fault: str | None, every_layer: bool
) -> None:
    path = subject.clean if fault is None else planted(subject, fault)
    config = subject.loaded.config
    names = list(layer_names(config)) if every_layer else [spec.name for spec in graph_outputs(config)]
    with TorchSession(subject.loaded.model, precision="fp64", layers=names) as session:
        truth = {case.name: run_case(session, config, case, {}, np.dtype(np.float64))}
    with OnnxSession(path, taps=names if every_layer else ()) as session:
        found = {case.name: run_case(session, config, case, {}, np.dtype(np.float32))}
    answer = polygraphy_answer(truth, found, names)
    taps = ("--onnx-outputs", "mark", "all") if every_layer else ()
    failed = command_failed(subject, path, case, truth[case.name], *taps)
    assert answer.failed == bool(failed) == (fault is not None)
    first = next((name for name in names if name in failed), None)
    assert answer.layer == first
    assert first == (None if fault is None else "blocks.1.attn.qkv" if every_layer else "logits")
