"""The two errors of a layer, the two passes, and what a comparison holds while it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from andrea_export.compare.inputs import Inputs
from andrea_export.compare.runs import Stream, run_case
from andrea_export.compare.sources.onnx_source import OnnxSource, onnx_source
from andrea_export.compare.sources.torch_source import TorchSource
from andrea_export.compare.torch_run import TorchRun
from andrea_export.core.names import layer_names, segments
from andrea_export.core.progress import Silent
from andrea_export.judge.verdicts import Terms
from andrea_export.report.schema import LayerRow, Report
from andrea_export.sessions.onnxruntime import OnnxSession
from andrea_export.sessions.torch_reference import TorchSession
from andrea_export.validation.comparison import diff
from andrea_export.weights.load import LoadedModel

Change = Callable[[onnx.ModelProto], None]


def changed(model: Path, folder: Path, change: Change) -> Path:
    """A copy of an ONNX file with one change."""
    proto = onnx.load(model)
    change(proto)
    onnx.save(proto, folder / "changed.onnx", save_as_external_data=True, location="changed.data")
    return folder / "changed.onnx"


def add_to_weight(name: str, at: tuple[int, ...], amount: float) -> Change:
    def change(model: onnx.ModelProto) -> None:
        tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
        array = numpy_helper.to_array(tensor).copy()
        array[at] += amount
        tensor.CopyFrom(numpy_helper.from_array(array, name))

    return change


def row(report: Report, name: str) -> LayerRow:
    return next(row for row in report.layers if row.name == name)


def test_a_run_by_segments_gives_the_layers_of_a_whole_run(small: LoadedModel, inputs: Inputs) -> None:
    case = inputs.cases[0]
    names = tuple(layer_names(small.config))
    with TorchSession(small.model, precision="fp64", layers=names) as session:
        whole = run_case(session, small.config, case, {}, np.dtype(np.float64))
    run = TorchRun(small.model, [case], precision="fp64")
    for segment in segments(small.config):
        found = run.accumulated(segment)[case.name]
        assert set(found) == set(segment.layers)
        for name, value in found.items():
            np.testing.assert_array_equal(value, whole[name], err_msg=name)


@pytest.mark.parametrize("precision", ["fp64", "fp32", "fp16", "bf16"])
def test_fed_its_own_layers_torch_gives_them_again(small: LoadedModel, inputs: Inputs, precision: str) -> None:
    """So the local error is what the layer adds, in every precision: the wiring of ``local`` is the model's."""
    run = TorchRun(small.model, inputs.cases, precision=precision)
    stream = Stream(small.config, inputs.cases, [run])
    for segment in segments(small.config):
        own = run.accumulated(segment)
        local = run.local(segment, stream.given(segment, own))
        for case, layers in own.items():
            assert set(local[case]) == set(layers)
            for name, value in layers.items():
                assert local[case][name].dtype == value.dtype, name
                np.testing.assert_array_equal(local[case][name], value, err_msg=f"{case} {name}")
        stream.forget(segment)


def test_the_clean_file_passes_in_both_errors_on_every_layer(clean: Report) -> None:
    assert clean.verdict == "pass" and clean.first_failure is None
    assert [row.name for row in clean.layers] == list(clean.layer_order)
    for entry in clean.layers:
        assert entry.verdict == "pass" and entry.local is not None and entry.local.verdict == "pass"
        assert entry.metrics["num_values"] == entry.local.metrics["num_values"] > 0


def test_a_fault_is_local_in_its_own_layer_and_accumulated_in_those_after_it(
    small_onnx: Path, tmp_path: Path, reference: TorchSource, inputs: Inputs
) -> None:
    layer = "blocks.0.attn.proj"
    file = changed(small_onnx, tmp_path, add_to_weight(f"{layer}.weight", (3, 5), 0.25))
    report = diff(reference, [onnx_source(file)], inputs, Terms(), progress=Silent())
    assert report.verdict == "fail" and report.first_failure == layer
    assert report.candidates[0].first_failure == layer
    locally = [entry.name for entry in report.layers if entry.local and entry.local.verdict == "fail"]
    assert locally == [layer]
    accumulated = [entry.name for entry in report.layers if entry.failures]
    assert accumulated[0] == layer and {"blocks.1.mlp.gelu", "logits"} <= set(accumulated)
    worst = row(report, layer).worst
    assert worst is not None and worst.index[-1] == 5  # the changed weight's column


def test_a_layer_that_reads_another_layer_is_at_fault_and_those_after_it_are_not(
    small_onnx: Path, tmp_path: Path, reference: TorchSource, inputs: Inputs
) -> None:
    def rewire(model: onnx.ModelProto) -> None:
        node = next(node for node in model.graph.node if node.name == "blocks.1.ln_2")
        node.input[0] = "blocks.1.ln_1"

    report = diff(reference, [onnx_source(changed(small_onnx, tmp_path, rewire))], inputs, Terms(), progress=Silent())
    assert report.first_failure == "blocks.1.ln_2"
    local = row(report, "blocks.1.mlp.fc").local
    assert local is not None and local.verdict == "pass"


def test_nan_is_a_failure_by_name(small_onnx: Path, tmp_path: Path, reference: TorchSource, inputs: Inputs) -> None:
    file = changed(small_onnx, tmp_path, add_to_weight("blocks.1.mlp.fc.bias", (0,), float("nan")))
    report = diff(reference, [onnx_source(file)], inputs, Terms(), progress=Silent())
    assert report.first_failure == "blocks.1.mlp.fc"
    assert {"num_nan"} <= {failure.metric for failure in row(report, "blocks.1.mlp.fc").failures}
    assert all(entry.verdict != "pass" for entry in report.language_model)


def test_the_report_says_how_far_the_taps_moved_the_logits(clean: Report) -> None:
    facts = clean.candidates[0].facts
    assert 0.0 <= facts["taps_moved_logits_by"] <= row(clean, "logits").budget["max_abs"]
    assert facts["logits_max_abs_as_shipped"] > 0.0


def test_a_graph_that_is_wrong_only_without_taps_fails(
    small_onnx: Path, candidate: OnnxSource, reference: TorchSource, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WrongAsShipped(OnnxSession):
        def run(self, feeds):  # type: ignore[no-untyped-def]
            outputs = super().run(feeds)
            return {**outputs, "logits": outputs["logits"] + 0.5}

    monkeypatch.setattr("andrea_export.compare.sources.onnx_source.OnnxSession", WrongAsShipped)
    report = diff(reference, [candidate], Inputs(cases=inputs.cases), Terms(), progress=Silent())
    assert report.verdict == "fail" and report.first_failure == "logits"
    assert [entry.name for entry in report.layers if entry.verdict == "fail"] == ["logits"]
    logits = row(report, "logits")
    assert logits.local is not None and logits.local.verdict == "pass"
    assert report.candidates[0].facts["taps_moved_logits_by"] == pytest.approx(0.5)


def test_a_case_that_the_graph_refuses_fails_and_the_others_still_count(
    small_onnx: Path, tmp_path: Path, reference: TorchSource, inputs: Inputs
) -> None:
    def transpose_mask(model: onnx.ModelProto) -> None:  # queries and keys differ in number only when decoding
        node = next(node for node in model.graph.node if node.name == "blocks.1.attn.context/Attention")
        index = list(model.graph.node).index(node)
        model.graph.node.insert(index, helper.make_node("Transpose", [node.input[3]], ["turned"], perm=[0, 1, 3, 2]))
        node.input[3] = "turned"

    file = changed(small_onnx, tmp_path, transpose_mask)
    report = diff(reference, [onnx_source(file)], Inputs(cases=inputs.cases), Terms(), progress=Silent())
    assert report.first_failure == "blocks.1.attn.context"
    assert "decode:" in report.candidates[0].reason


def test_an_onnx_reference_doubles_the_basis_by_its_own_error(
    candidate: OnnxSource, small: LoadedModel, inputs: Inputs, clean: Report
) -> None:
    torch_fp32 = TorchSource(small.model, small.origin, precision="fp32", provenance={})
    report = diff(candidate, [torch_fp32], inputs, Terms(), progress=Silent())
    assert report.verdict == "pass", report.candidates[0].reason
    ours, before = row(report, "blocks.1.mlp.fc"), row(clean, "blocks.1.mlp.fc")
    assert ours.basis["max_abs"] == pytest.approx(2 * before.basis["max_abs"])


def test_the_same_model_in_fp16_passes_its_own_budget_and_not_that_of_fp32(
    small: LoadedModel, reference: TorchSource, inputs: Inputs
) -> None:
    half = TorchSource(small.model, small.origin, precision="fp16", provenance={})
    report = diff(reference, [half], inputs, Terms(), progress=Silent())
    assert report.verdict == "pass", report.candidates[0].reason
    assert row(report, "blocks.1.mlp.fc").dtype == "fp16" and row(report, "logits").dtype == "fp32"
    assert row(report, "logits").metrics["max_abs"] > 1e-4


def test_only_what_later_segments_need_is_carried_on(small: LoadedModel, inputs: Inputs) -> None:
    run = TorchRun(small.model, inputs.cases, precision="fp64")
    stream = Stream(small.config, inputs.cases, [run])
    for segment in segments(small.config):
        stream.given(segment, run.accumulated(segment))
        stream.forget(segment)
        carried = {name for layers in stream._carried.values() for name in layers}
        assert carried <= {"mask", "embed_residual", "blocks.0.mlp_residual", "blocks.1.mlp_residual"}


def test_the_cache_a_layer_is_given_is_that_of_the_case_before(small: LoadedModel, inputs: Inputs) -> None:
    run = TorchRun(small.model, inputs.cases, precision="fp64")
    order = segments(small.config)
    run.accumulated(order[0])
    found = run.accumulated(order[1])
    given = Stream(small.config, inputs.cases, [run]).given(order[1], found)
    np.testing.assert_array_equal(given["decode"]["past_key_values.0.key"], found["prefill"]["present.0.key"])
    assert given["prefill"]["past_key_values.0.key"].shape[2] == 0
