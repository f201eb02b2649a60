"""Planted faults: validation must fail, and name the layer the fault is in, by its figures alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from andrea_export.bundle.layout import MODEL, WEIGHTS
from andrea_export.bundle.manifest import file_entry, open_bundle, seal
from andrea_export.core.errors import BundleError
from andrea_export.core.progress import Silent
from andrea_export.graph.parameters import hashes_from_model
from andrea_export.report.file import report_as_json, report_from_json
from andrea_export.report.schema import Report
from andrea_export.targets.onnx.target import check_weights
from andrea_export.validation.bundle import validate_bundle
from andrea_export.weights.load import LoadedModel

Fault = Callable[[onnx.ModelProto], None]


def plant(bundle: Path, fault: Fault, *, reseal: bool = True) -> None:
    """Changes the bundle's ONNX file; sealed again, so that only the comparison can notice."""
    model = onnx.load(bundle / MODEL)
    fault(model)
    (bundle / WEIGHTS).unlink()
    onnx.save(model, bundle / MODEL, save_as_external_data=True, location=WEIGHTS)
    if reseal:
        manifest = open_bundle(bundle, verify=False).manifest
        files = {name: file_entry(bundle / name) for name in manifest.files}
        seal(bundle, replace(manifest, files=files))


def node_named(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.name == name)


def weight(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def set_weight(model: onnx.ModelProto, name: str, array: np.ndarray) -> None:
    weight(model, name).CopyFrom(numpy_helper.from_array(array.astype(np.float32), name))


def one_weight_plus_one(model: onnx.ModelProto) -> None:
    name = "blocks.1.attn.proj.weight"
    array = numpy_helper.to_array(weight(model, name)).copy()
    array[3, 5] += 1.0
    set_weight(model, name, array)


def erf_for_tanh(model: onnx.ModelProto) -> None:
    node = node_named(model, "blocks.1.mlp.gelu")
    node.CopyFrom(helper.make_node("Gelu", list(node.input), list(node.output), name=node.name, approximate="none"))


def two_blocks_swapped(model: onnx.ModelProto) -> None:
    names = [tensor.name for tensor in model.graph.initializer if tensor.name.startswith("blocks.0.")]
    for name in names:
        other = name.replace("blocks.0.", "blocks.1.")
        first, second = numpy_helper.to_array(weight(model, name)), numpy_helper.to_array(weight(model, other))
        set_weight(model, name, second)
        set_weight(model, other, first)


def bias_dropped(model: onnx.ModelProto) -> None:
    node = node_named(model, "blocks.0.mlp.fc")
    node.CopyFrom(helper.make_node("Identity", [node.input[0]], list(node.output), name=node.name))


def position_shifted(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array(1, np.int64), "one"))
    model.graph.node.insert(0, helper.make_node("Add", ["position_ids", "one"], ["shifted"], name="shift"))
    node_named(model, "position_embed").input[1] = "shifted"


def mask_transposed(model: onnx.ModelProto) -> None:
    node = node_named(model, "blocks.1.attn.context/Attention")
    index = list(model.graph.node).index(node)
    transpose = helper.make_node("Transpose", [node.input[3]], ["turned"], name="turn", perm=[0, 1, 3, 2])
    node.input[3] = "turned"
    model.graph.node.insert(index, transpose)


FAULTS: dict[str, tuple[Fault, str]] = {
    "one weight + 1.0": (one_weight_plus_one, "blocks.1.attn.proj"),
    "erf for tanh in one layer": (erf_for_tanh, "blocks.1.mlp.gelu"),
    "two blocks swapped": (two_blocks_swapped, "blocks.0.ln_1"),
    "one bias dropped": (bias_dropped, "blocks.0.mlp.fc"),
    "position shifted by one": (position_shifted, "position_embed"),
    "one attention mask transposed": (mask_transposed, "blocks.1.attn.context"),
}


def validated(bundle: Path, cache_dir: Path, checkpoint: Path | None = None) -> Report:
    return validate_bundle(bundle, checkpoint=checkpoint, cache_dir=cache_dir, progress=Silent())


@pytest.mark.parametrize("kind", FAULTS)
def test_a_planted_fault_is_caught_in_its_layer(kind: str, bundle: Path, cache_dir: Path, checkpoint: Path) -> None:
    fault, layer = FAULTS[kind]
    plant(bundle, fault)
    report = validated(bundle, cache_dir, checkpoint)
    assert report.verdict == "fail"
    assert report.first_failure == layer
    onnxruntime = next(candidate for candidate in report.candidates if candidate.name == "onnxruntime-cpu")
    assert onnxruntime.first_failure == layer  # by the figures, not by the weights' hashes
    before = report.layer_order[: report.layer_order.index(layer)]
    assert all(row.verdict == "pass" for row in report.layers if row.name in before)


def test_the_untouched_bundle_passes_with_every_layer_in_its_report(bundle: Path, cache_dir: Path) -> None:
    report = validated(bundle, cache_dir)
    assert report.verdict == "pass"
    assert report.first_failure is None
    rows = [row.name for row in report.layers if row.candidate == "onnxruntime-cpu"]
    assert rows == list(report.layer_order)
    assert {"blocks.1.attn_residual", "present.0.key", "ln_f", "logits", "mask"} <= set(rows)
    assert all(row.budget["max_abs"] >= row.metrics["max_abs"] for row in report.layers)
    assert any(row.metrics["max_abs"] > 0 for row in report.layers)


def test_a_changed_file_is_named_and_so_is_the_layer(bundle: Path, cache_dir: Path) -> None:
    plant(bundle, one_weight_plus_one, reseal=False)
    report = validated(bundle, cache_dir)
    assert report.verdict == "fail"
    files = next(check for check in report.checks if check.name == "files")
    assert files.verdict == "fail" and WEIGHTS in files.detail
    assert report.first_failure == "blocks.1.attn.proj"


def test_weights_are_held_against_the_manifest_even_without_the_checkpoint(bundle: Path, cache_dir: Path) -> None:
    """Then torch runs with the file's own weights, so no figure can show the fault: the hashes must."""
    plant(bundle, one_weight_plus_one)
    report = validated(bundle, cache_dir)
    weights = next(check for check in report.checks if check.name == "weights")
    assert (weights.verdict, weights.layer) == ("fail", "blocks.1.attn.proj")
    assert report.verdict == "fail" and report.first_failure == "blocks.1.attn.proj"


def test_a_layer_the_file_lacks_is_missing_not_passed(bundle: Path, cache_dir: Path) -> None:
    def rename(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            for names in (node.input, node.output):
                for index, name in enumerate(names):
                    if name == "blocks.0.attn.qkv":
                        names[index] = "elsewhere"

    plant(bundle, rename)
    report = validated(bundle, cache_dir)
    row = next(row for row in report.layers if row.name == "blocks.0.attn.qkv" and row.candidate == "onnxruntime-cpu")
    assert row.verdict == "fail" and row.problem.startswith("missing")
    assert report.first_failure == "blocks.0.attn.qkv"


def test_nan_on_both_sides_is_no_pass(bundle: Path, cache_dir: Path, checkpoint: Path) -> None:
    def poison(model: onnx.ModelProto) -> None:
        array = numpy_helper.to_array(weight(model, "blocks.0.mlp.fc.bias")).copy()
        array[0] = np.nan
        set_weight(model, "blocks.0.mlp.fc.bias", array)

    plant(bundle, poison)
    report = validated(bundle, cache_dir)  # without the checkpoint, torch has the NaN too
    assert report.verdict == "fail" and report.first_failure == "blocks.0.mlp.fc"


def test_a_file_onnxruntime_cannot_load_fails_with_its_reason(bundle: Path, cache_dir: Path, checkpoint: Path) -> None:
    def break_it(model: onnx.ModelProto) -> None:
        node_named(model, "blocks.0.mlp.gelu").op_type = "NoSuchOperator"

    plant(bundle, break_it)
    report = validated(bundle, cache_dir, checkpoint)
    candidate = next(candidate for candidate in report.candidates if candidate.name == "onnxruntime-cpu")
    assert candidate.verdict == "fail" and "NoSuchOperator" in candidate.reason
    assert report.verdict == "fail"


def test_another_checkpoint_is_refused(bundle: Path, cache_dir: Path, tmp_path: Path) -> None:
    from andrea_export.weights.load import load_model, save_checkpoint

    other = tmp_path / "other.safetensors"
    save_checkpoint(load_model(preset="andrea-tiny", checkpoint=None, seed=9).model, other)
    with pytest.raises(BundleError, match=r"other\.safetensors is not the checkpoint"):
        validated(bundle, cache_dir, other)


def test_the_report_survives_json(bundle: Path, cache_dir: Path, tmp_path: Path) -> None:
    report = validated(bundle, cache_dir)
    text = report_as_json(report)
    file = tmp_path / "report.json"
    file.write_text(text)
    assert report_as_json(report_from_json(file)) == text
    content = json.loads(text)
    assert {"verdict", "reference", "candidates", "layers", "first_failure", "formula"} <= set(content)
    assert {"name", "candidate", "verdict", "metrics", "budget"} <= set(content["layers"][0])
    assert str(bundle) not in text and str(tmp_path) not in text


def test_float_types_of_a_row_follow_the_value(bundle: Path, cache_dir: Path) -> None:
    """The mask is a bool tensor: its budget is exactly nothing."""
    report = validated(bundle, cache_dir)
    mask = next(row for row in report.layers if row.name == "mask")
    assert mask.budget == {"max_abs": 0.0, "relative_l2": 0.0}
    assert helper.np_dtype_to_tensor_dtype(np.dtype(bool)) == TensorProto.BOOL


def test_without_onnxruntime_nothing_is_proven(
    bundle: Path, cache_dir: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plugin's maths alone says nothing of the model, so its passing rows must not pass the report."""
    from andrea_export.sessions.base import Availability

    monkeypatch.setattr(
        "andrea_export.compare.sources.onnx_source.provider_availability",
        lambda name: Availability(available=False, reason="onnxruntime is not installed"),
    )
    report = validated(bundle, cache_dir, checkpoint)
    onnxruntime = next(candidate for candidate in report.candidates if candidate.name == "onnxruntime-cpu")
    assert (onnxruntime.verdict, onnxruntime.reason) == ("not-measured", "onnxruntime is not installed")
    assert any(row.verdict == "pass" for row in report.layers if row.candidate.startswith("plugin-maths-"))
    assert report.verdict == "fail"


def damage_with(content: bytes | None) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        file.unlink()
        if content is not None:
            file.write_bytes(content)

    return damage


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


DAMAGES = {
    "garbage": damage_with(b"\x93garbage" * 400),
    "empty": damage_with(b""),
    "missing": damage_with(None),
    "truncated": truncate,
}


@pytest.mark.parametrize("name", [MODEL, WEIGHTS])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_a_damaged_file_is_a_failed_check_that_names_it(
    bundle: Path, cache_dir: Path, checkpoint: Path, name: str, damage: str, with_checkpoint: bool
) -> None:
    DAMAGES[damage](bundle / name)
    report = validated(bundle, cache_dir, checkpoint if with_checkpoint else None)
    assert report.verdict == "fail"
    files = next(check for check in report.checks if check.name == "files")
    assert files.verdict == "fail" and name in files.detail
    assert next(check for check in report.checks if check.name == "weights").verdict == "fail"
    assert report_as_json(report)


def test_weights_of_another_type_or_shape_are_not_bit_for_bit_the_models(
    bundle: Path, tiny: LoadedModel, tmp_path: Path
) -> None:
    expected = hashes_from_model(tiny.model)
    assert check_weights(bundle / MODEL, expected, tiny.config).verdict == "pass"

    def as_fp64(model: onnx.ModelProto) -> None:
        name = "blocks.0.ln_1.weight"
        weight(model, name).CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(weight(model, name)).astype("f8"), name)
        )

    def turned(model: onnx.ModelProto) -> None:
        name = "blocks.0.mlp.proj.weight"
        array = numpy_helper.to_array(weight(model, name))
        weight(model, name).CopyFrom(numpy_helper.from_array(array.reshape(array.shape[::-1]), name))

    def one_more(model: onnx.ModelProto) -> None:
        model.graph.initializer.append(numpy_helper.from_array(np.zeros(3, np.float32), "blocks.0.extra"))

    for fault, message, layer in (
        (as_fp64, "blocks.0.ln_1.weight (float64 [64], expected float32 [64])", "blocks.0.ln_1"),
        (turned, "blocks.0.mlp.proj.weight (float32 [64, 256], expected float32 [256, 64])", "blocks.0.mlp.proj"),
    ):
        copy = Path(shutil.copytree(bundle, tmp_path / layer))
        plant(copy, fault)
        check = check_weights(copy / MODEL, expected, tiny.config)
        assert (check.verdict, check.layer) == ("fail", layer) and message in check.detail
    plant(bundle, one_more)
    check = check_weights(bundle / MODEL, expected, tiny.config)
    assert check.verdict == "fail" and "blocks.0.extra (is not a parameter of the model)" in check.detail
    assert check_weights(bundle / MODEL, {}, tiny.config).verdict == "fail"
