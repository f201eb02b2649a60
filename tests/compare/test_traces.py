"""Recorded traces: compared like what they were recorded from, and refused when they are not what they say."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from andrea_export.compare.inputs import Inputs
from andrea_export.compare.recording import record, write_trace
from andrea_export.compare.sources.base import Source
from andrea_export.compare.sources.onnx_source import OnnxSource
from andrea_export.compare.sources.torch_source import TorchSource
from andrea_export.compare.sources.trace_source import TraceSource
from andrea_export.compare.trace_file import TraceFile, tensor_sha256
from andrea_export.core.errors import MismatchError, RunError, TraceError, UsageError, ValidationError
from andrea_export.core.names import TRACE_KEY
from andrea_export.core.progress import Silent
from andrea_export.judge.verdicts import Terms
from andrea_export.report.schema import Report
from andrea_export.validation.comparison import Sources, diff, inputs_for
from andrea_export.weights.load import LoadedModel


def recorded(source: Source, inputs: Inputs, folder: Path, name: str = "trace.safetensors") -> TraceSource:
    write_trace(record(source, inputs, progress=Silent()), folder / name)
    return TraceSource(TraceFile(folder / name))


@pytest.fixture(scope="module")
def reference_trace(reference: TorchSource, inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> TraceSource:
    """Torch in fp64, recorded. Read only."""
    return recorded(reference, inputs, tmp_path_factory.mktemp("reference"))


@pytest.fixture(scope="module")
def candidate_trace(candidate: OnnxSource, inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> TraceSource:
    """The ONNX file, recorded. Read only."""
    return recorded(candidate, inputs, tmp_path_factory.mktemp("candidate"))


def rewritten(trace: TraceSource, file: Path, change: Callable[[dict[str, Any], dict[str, np.ndarray]], None]) -> Path:
    """A copy of a trace with its header or tensors changed; the hashes are made to fit, so only sense can object."""
    from safetensors import safe_open

    tensors = load_file(trace.recording.path)
    with safe_open(trace.recording.path, framework="np") as opened:
        header = json.loads(opened.metadata()[TRACE_KEY])
    change(header, tensors)
    header["sha256"] = {name: tensor_sha256(value) for name, value in tensors.items()}
    save_file(tensors, file, metadata={TRACE_KEY: json.dumps(header)})
    return file


def figures(report: Report) -> dict[str, Any]:
    return {row.name: (row.metrics, row.budget) for row in report.layers}


def test_a_recorded_reference_gives_the_figures_and_budgets_of_a_live_one(
    reference_trace: TraceSource, candidate: OnnxSource, inputs: Inputs, clean: Report
) -> None:
    report = diff(reference_trace, [candidate], inputs, Terms(), progress=Silent())
    assert report.verdict == "pass"
    assert figures(report) == figures(clean)
    for ours, theirs in zip(report.layers, clean.layers, strict=True):
        assert ours.local is not None and theirs.local is not None
        assert (ours.local.metrics, ours.local.budget) == (theirs.local.metrics, theirs.local.budget)
    assert [row.budget.keys() for row in report.language_model] == [row.budget.keys() for row in clean.language_model]


def test_a_recorded_candidate_gives_the_accumulated_figures_of_a_live_one(
    reference: TorchSource, candidate_trace: TraceSource, inputs: Inputs, clean: Report
) -> None:
    report = diff(reference, [candidate_trace], inputs, Terms(), progress=Silent())
    assert report.verdict == "pass", report.candidates[0].reason
    assert figures(report) == figures(clean)
    assert report.candidates[0].name == "onnxruntime-cpu" and "trace_sha256" in report.candidates[0].provenance
    assert [row.metrics for row in report.language_model] == [row.metrics for row in clean.language_model]


def test_the_local_error_of_a_trace_is_taken_the_other_way_round_and_names_the_layer(
    reference: TorchSource, candidate_trace: TraceSource, inputs: Inputs, tmp_path: Path
) -> None:
    layer = "blocks.0.mlp.gelu"

    def add(_header: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        tensors[f"layers/prefill/{layer}"] += np.float32(0.01)

    file = rewritten(candidate_trace, tmp_path / "changed.safetensors", add)
    report = diff(reference, [TraceSource(TraceFile(file))], inputs, Terms(), progress=Silent())
    assert report.first_failure == layer
    row = next(row for row in report.layers if row.name == layer)
    assert row.local is not None and row.local.verdict == "fail" and "other way round" in row.local.reason


def test_two_traces_are_compared_with_no_model_at_hand(
    reference_trace: TraceSource, candidate_trace: TraceSource, inputs: Inputs
) -> None:
    given = inputs_for(
        [reference_trace, candidate_trace], reference_trace.identity.config, file=None, text=None, language_model=True
    )
    report = diff(reference_trace, [candidate_trace], given, Terms(), progress=Silent())
    assert report.verdict == "pass", report.candidates[0].reason
    assert all(row.local is not None and row.local.verdict == "not-measured" for row in report.layers)
    assert len(report.language_model) == 6


def test_traces_keep_bf16(small: LoadedModel, reference: TorchSource, inputs: Inputs, tmp_path: Path) -> None:
    half = TorchSource(small.model, small.origin, precision="bf16", provenance={})
    trace = recorded(half, Inputs(cases=inputs.cases), tmp_path)
    report = diff(reference, [trace], Inputs(cases=inputs.cases), Terms(), progress=Silent())
    assert report.verdict == "pass", report.candidates[0].reason
    assert next(row for row in report.layers if row.name == "blocks.0.attn.qkv").dtype == "bf16"


def test_a_trace_recorded_without_its_language_model_is_not_measured_there(
    reference: TorchSource, candidate: OnnxSource, inputs: Inputs, tmp_path: Path
) -> None:
    trace = recorded(candidate, Inputs(cases=inputs.cases), tmp_path)
    report = diff(reference, [trace], inputs, Terms(), progress=Silent())
    assert report.verdict == "fail" and "recorded without its language model" in report.candidates[0].reason
    assert diff(reference, [trace], Inputs(cases=inputs.cases), Terms(), progress=Silent()).verdict == "pass"


@pytest.mark.parametrize("num_bytes", [0, 7, 1000])
def test_a_truncated_trace_is_refused(candidate_trace: TraceSource, tmp_path: Path, num_bytes: int) -> None:
    file = tmp_path / "short.safetensors"
    file.write_bytes(candidate_trace.recording.path.read_bytes()[:num_bytes])
    with pytest.raises(TraceError, match="not a whole safetensors file"):
        TraceFile(file)


def test_a_trace_that_ends_early_is_still_called_one(candidate_trace: TraceSource, tmp_path: Path) -> None:
    file = tmp_path / "short.safetensors"
    content = candidate_trace.recording.path.read_bytes()
    file.write_bytes(content[: len(content) - 1])
    with Sources() as sources, pytest.raises(TraceError, match="not a whole safetensors file") as caught:
        sources.open(str(file), precision="fp64")
    assert caught.value.hint == "copy or record it again"


def test_a_changed_byte_is_noticed(candidate_trace: TraceSource, reference: TorchSource, inputs: Inputs, tmp_path: Path) -> None:  # fmt: skip  # noqa: E501
    content = bytearray(candidate_trace.recording.path.read_bytes())
    content[-3] ^= 1
    file = tmp_path / "changed.safetensors"
    file.write_bytes(content)
    trace = TraceFile(file)
    with pytest.raises(TraceError, match="is not what was recorded"):
        [trace.tensor(name) for name in trace.header.sha256]


def set_key(key: str, value: Any) -> Callable[[dict[str, Any], dict[str, np.ndarray]], None]:
    return lambda header, _tensors: header.update({key: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_key("version", 2), "has version 2, expected 1"),
        (set_key("magic", "other"), "does not begin with"),
        (set_key("unknown", 1), "its header is damaged"),
        (set_key("config", {"d_model": 3}), "its header is damaged"),
    ],
)
def test_a_trace_of_another_kind_is_refused(
    candidate_trace: TraceSource, tmp_path: Path, change: Callable[..., None], message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        TraceFile(rewritten(candidate_trace, tmp_path / "other.safetensors", change))


def test_a_trace_of_another_model_is_refused(
    reference: TorchSource, candidate_trace: TraceSource, inputs: Inputs, tmp_path: Path
) -> None:
    file = rewritten(candidate_trace, tmp_path / "other.safetensors", set_key("origin", "another checkpoint"))
    with pytest.raises(MismatchError, match="the trace is of another model"):
        diff(reference, [TraceSource(TraceFile(file))], inputs, Terms(), progress=Silent())


def put(name: str, index: tuple[int, ...], value: float) -> Callable[[dict[str, Any], dict[str, np.ndarray]], None]:
    def change(_header: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        if not np.isfinite(value) and tensors[name].dtype.kind == "i":
            tensors[name] = tensors[name].astype(np.float64)
        tensors[name][index] = value

    return change


@pytest.mark.parametrize(
    ("name", "index", "value", "message"),
    [
        ("layers/decode/ln_f", (0, 0, 5), np.nan, r"layers/decode/ln_f is NaN at \[0, 0, 5\]"),
        ("logits/context 128", (7, 3), np.nan, r"logits/context 128 is NaN at \[7, 3\]"),
        ("inputs/prefill/input_ids", (0, 1), np.nan, r"inputs/prefill/input_ids is NaN at \[0, 1\]"),
        ("inputs/prefill/input_ids", (0, 1), 260, r"input_ids holds 260, outside the vocabulary \(0 to 259\)"),
        ("text", (3,), -1, r"text holds -1, outside the vocabulary"),
    ],
)
@pytest.mark.parametrize("side", ["reference", "candidate"])
def test_a_trace_of_what_no_model_gives_or_takes_is_refused_before_anything_is_run(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    side: str,
    name: str,
    index: tuple[int, ...],
    value: float,
    message: str,
) -> None:
    trace = request.getfixturevalue(f"{side}_trace")
    file = rewritten(trace, tmp_path / "changed.safetensors", put(name, index, value))
    with Sources() as sources, pytest.raises(TraceError, match=message) as caught:
        sources.open(str(file), precision="fp64")
    assert caught.value.hint is not None and "record it again" in caught.value.hint


def test_inputs_of_another_type_are_refused(candidate_trace: TraceSource, tmp_path: Path) -> None:
    def change(_header: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        tensors["inputs/decode/position_ids"] = tensors["inputs/decode/position_ids"].astype(np.int32)

    trace = TraceFile(rewritten(candidate_trace, tmp_path / "changed.safetensors", change))
    with pytest.raises(TraceError, match="position_ids has type int32, expected int64"):
        trace.verify()


def test_infinity_in_a_recorded_reference_is_refused_and_in_a_candidate_fails(
    reference_trace: TraceSource,
    reference: TorchSource,
    candidate_trace: TraceSource,
    candidate: OnnxSource,
    inputs: Inputs,
    tmp_path: Path,
) -> None:
    overflow, cases = put("layers/decode/ln_f", (0, 0, 0), np.inf), Inputs(cases=inputs.cases)
    bad = TraceSource(TraceFile(rewritten(reference_trace, tmp_path / "reference.safetensors", overflow)))
    with pytest.raises(TraceError, match=r"Inf in ln_f \(decode\)"):
        diff(bad, [candidate], cases, Terms(), progress=Silent())
    ours = TraceSource(TraceFile(rewritten(candidate_trace, tmp_path / "candidate.safetensors", overflow)))
    assert diff(reference, [ours], cases, Terms(), progress=Silent()).first_failure == "ln_f"


def test_a_model_that_gives_nan_is_not_recorded(small: LoadedModel, inputs: Inputs) -> None:
    model = copy.deepcopy(small.model)
    model.blocks[1].mlp.fc.bias[7] = np.nan
    source = TorchSource(model, small.origin, precision="fp32", provenance={})
    with pytest.raises(ValidationError, match=r"not recorded: blocks.1.mlp.fc is NaN, first at \[0, 0, 7\] of prefill"):
        record(source, inputs, progress=Silent())


def test_nan_in_the_predictions_alone_is_not_recorded(small: LoadedModel, inputs: Inputs) -> None:
    model = copy.deepcopy(small.model)
    model.position_embed.weight[100] = np.nan  # the cases end before it, the text does not
    source = TorchSource(model, small.origin, precision="fp32", provenance={})
    record(source, Inputs(cases=inputs.cases), progress=Silent())
    with pytest.raises(ValidationError, match="not recorded: logits is NaN"):
        record(source, inputs, progress=Silent())


def test_traces_on_different_inputs_are_refused(
    reference_trace: TraceSource, candidate: OnnxSource, inputs: Inputs, tmp_path: Path
) -> None:
    other = recorded(candidate, Inputs(cases=inputs.cases[:1], text=inputs.text, source="other"), tmp_path)
    config = reference_trace.identity.config
    with pytest.raises(MismatchError, match="recorded on different inputs"):
        inputs_for([reference_trace, other], config, file=None, text=None, language_model=True)
    with pytest.raises(UsageError, match="brings its own inputs"):
        inputs_for([other], config, file=tmp_path / "tokens", text=None, language_model=True)


def test_a_recorded_engine_cannot_be_the_basis_of_budgets(
    candidate_trace: TraceSource, candidate: OnnxSource, inputs: Inputs, tmp_path: Path
) -> None:
    file = rewritten(candidate_trace, tmp_path / "bare.safetensors", set_key("basis", {}))
    with pytest.raises(MismatchError, match="holds no basis for budgets in fp32"):
        diff(TraceSource(TraceFile(file)), [candidate], inputs, Terms(), progress=Silent())


def test_a_run_that_was_refused_is_not_recorded(candidate: OnnxSource, inputs: Inputs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # fmt: skip  # noqa: E501
    from andrea_export.compare.onnx_run import OnnxRun

    class Refusing(OnnxRun):
        def accumulated(self, segment):  # type: ignore[no-untyped-def]
            self.refusals.append("decode: no")
            return super().accumulated(segment)

    monkeypatch.setattr("andrea_export.compare.sources.onnx_source.OnnxRun", Refusing)
    with pytest.raises(RunError, match="was not recorded"):
        record(candidate, inputs, progress=Silent())
