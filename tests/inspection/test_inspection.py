"""Inspection: each kind is recognised by its content, and what is said of it is what is in it."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import parser
from safetensors.torch import load_file, save_file

from andrea_export.core.errors import AndreaError, BundleError, CheckpointError, UsageError
from andrea_export.inspection.facts import Inspection, parameter_counts
from andrea_export.inspection.files import inspect_path, inspection_as_json
from andrea_model import PRESETS

TINY = PRESETS["andrea-tiny"]


def test_a_checkpoint(checkpoint: Path) -> None:
    found = inspect_path(checkpoint)
    assert found.kind == "checkpoint"
    assert found.config == TINY
    assert found.preset == "andrea-tiny"
    assert found.num_parameters == parameter_counts(TINY).exact == 186_176
    assert len(found.tensors) == 28
    assert found.tensors[0].dims
    assert "counted in this file: 186,176, as computed" in found.arithmetic


def test_a_checkpoint_without_a_configuration_is_read_from_its_shapes(checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "bare.bin"  # the name says nothing: the content does
    save_file(load_file(checkpoint), path)
    found = inspect_path(path)
    assert (found.kind, found.config) == ("checkpoint", TINY)
    assert any("no configuration" in note for note in found.notes)


def test_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"encoder.weight": torch.zeros(3, 5)}, path)
    found = inspect_path(path)
    assert (found.kind, found.config, found.num_parameters, found.arithmetic) == ("checkpoint", None, 15, ())
    assert any("not those of an ANDREA preset" in note for note in found.notes)


def test_a_checkpoint_with_a_tensor_too_many_does_not_count_as_computed(checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "more.safetensors"
    save_file({**load_file(checkpoint), "head.weight": torch.zeros(321, 64)}, path)
    assert f"counted in this file: {186_176 + 321 * 64:,}, NOT the computed 186,176" in inspect_path(path).arithmetic


def test_a_truncated_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.safetensors"
    path.write_bytes(checkpoint.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match="is not a whole safetensors file"):
        inspect_path(path)


@pytest.mark.parametrize(
    ("num_params", "preset", "text"),
    [
        (parameter_counts(TINY).exact, "andrea-tiny", "andrea-tiny with tied head, biases, norms with weight and bias"),
        (parameter_counts(TINY).untied_matrices, "andrea-tiny", "head of its own, no biases, norms without parameters"),
        (7, None, "not the count of any preset"),
    ],
)
def test_the_published_layout(tmp_path: Path, num_params: int, preset: str | None, text: str) -> None:
    path = tmp_path / "checkpoint.bin"
    path.write_bytes(struct.pack("<ii", 5000, num_params) + np.zeros(3 * num_params, "<f4").tobytes())
    found = inspect_path(path)
    assert found.kind == "published-checkpoint"
    assert (found.preset, found.num_parameters, found.trained) == (preset, num_params, True)
    assert text in found.notes[0]


def test_our_onnx(tiny_onnx: Path) -> None:
    found = inspect_path(tiny_onnx)
    assert found.kind == "onnx"
    assert found.config == TINY
    assert found.trained is True
    assert found.num_parameters == 186_176
    assert found.num_nodes["com.andrea::AndreaGelu"] == found.num_nodes["Attention"] == 2
    assert found.num_nodes["LayerNormalization"] == 5
    assert [(entry.name, entry.dtype) for entry in found.inputs][:2] == [
        ("input_ids", "INT64"),
        ("attention_mask", "INT64"),
    ]
    assert found.outputs[0].dims == ("batch", "sequence", 321)
    assert found.made_by["producer"].startswith("andrea-export ")
    assert found.made_by["opsets"] == "ai.onnx 23, com.andrea 1"


def test_our_onnx_without_its_weights_file(tiny_onnx: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(tiny_onnx.read_bytes())
    found = inspect_path(path)
    assert found.notes == ("weights in model.onnx.data: that file is MISSING beside model.onnx",)


def test_a_foreign_onnx(tmp_path: Path) -> None:
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20], producer_name: "somebody">'
        "g (float[N, 4] x) => (float[N, 4] y) <float[4] w = {1, 2, 3, 4}> { t = Add(x, w) y = Relu(t) }"
    )
    onnx.save(model, tmp_path / "foreign.onnx")
    found = inspect_path(tmp_path / "foreign.onnx")
    assert (found.kind, found.config, found.trained, found.num_parameters) == ("onnx", None, None, 4)
    assert found.num_nodes == {"Add": 1, "Relu": 1}
    assert found.inputs[0].dims == ("N", 4)
    assert found.made_by["producer"] == "somebody"
    assert any("not written by andrea-export" in note for note in found.notes)


def plan(flavour: bytes, *, version: bytes = bytes((1, 7, 1, 116)), body: bytes = b"") -> bytes:
    """The bytes a plan begins with, as TensorRT-RTX 1.7.1 wrote them (its size at 16), then a body."""
    return flavour + b"\0\0\0\0\x03" + b"\0" * 7 + struct.pack("<Q", 32 + len(body)) + version + flavour + body


@pytest.mark.parametrize(("flavour", "producer"), [(b"vtrt", "TensorRT-RTX 1.7.1.116"), (b"ftrt", "TensorRT")])
def test_an_engine_alone(tmp_path: Path, flavour: bytes, producer: str) -> None:
    path = tmp_path / "some.plan"
    path.write_bytes(plan(flavour, body=b"  accelerators={sm80 sm89 }\n"))
    found = inspect_path(path)
    assert found.kind == "engine"
    assert found.made_by == {"producer": producer, "plugin": "none embedded"}
    assert any("is not in a bundle" in note for note in found.notes)


@pytest.mark.parametrize("length", [4, 10, 24, 27, 31, 40])
def test_an_engine_cut_short(tmp_path: Path, length: int) -> None:
    path = tmp_path / "some.plan"
    path.write_bytes(plan(b"vtrt", body=bytes(50))[:length])
    with pytest.raises(
        UsageError, match=r"but is not one|is not a whole TensorRT-RTX engine: it has 40 bytes, and its header says 82"
    ):
        inspect_path(path)


@pytest.mark.parametrize("magic", [b"vtrt", b"ftrt"])
def test_text_that_begins_like_an_engine(tmp_path: Path, magic: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(magic + b" is what the first line of my notes begins with, of all things")
    with pytest.raises(UsageError, match="begins like a TensorRT"):
        inspect_path(path)


def test_a_program_is_no_plugin_library() -> None:
    with pytest.raises(UsageError, match="none of a TensorRT plugin library's entry points"):
        inspect_path(Path("/bin/ls").resolve())


def test_what_never_ends_is_not_read() -> None:
    for path in (Path("/proc/kmsg"), Path("/proc/self/mem"), Path("/dev/zero")):
        with pytest.raises(UsageError, match=r"is empty|is neither a file nor a folder"):
            inspect_path(path)


@pytest.mark.parametrize("name", ["x.json", "x.pbtxt", "x.onnxtxt", "x.textproto", "x"])
def test_an_onnx_file_by_any_name(tiny_onnx: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(tiny_onnx.read_bytes())
    assert inspect_path(tmp_path / name).config == TINY


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "a/../../secret"])
def test_weights_outside_the_models_folder_are_not_looked_at(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret").write_bytes(bytes(1234))
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> '
        "g (float[4] x) => (float[4] y) <float[4] w = {1, 2, 3, 4}> { y = Add(x, w) }"
    )
    tensor = model.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    tensor.data_type = onnx.TensorProto.FLOAT
    model.graph.input[0].type.tensor_type.elem_type = 99  # a type no ONNX release has
    (tmp_path / "models").mkdir()
    path = tmp_path / "models" / "model.onnx"
    path.write_bytes(model.SerializeToString())
    found = inspect_path(path)
    assert (
        found.notes[0] == f"weights in {location}: that name leads out of the folder of model.onnx, and is not followed"
    )
    assert found.num_bytes == path.stat().st_size
    assert found.inputs[0].dtype == "type 99"


def engine_beside(tmp_path: Path, library: bytes, embedded: bytes) -> Inspection:
    (tmp_path / "engines").mkdir()
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "libandrea_plugins.so").write_bytes(library)
    path = tmp_path / "engines" / "tensorrt-rtx-fp32.plan"
    path.write_bytes(plan(b"vtrt", body=embedded))
    return inspect_path(path)


def test_an_embedded_plugin_is_found_byte_for_byte(tmp_path: Path) -> None:
    library = b"\x7fELF a library" + bytes(range(256))
    found = engine_beside(tmp_path, library, b"before" + library + b"after")
    assert found.made_by["plugin"] == f"libandrea_plugins.so is embedded, byte for byte ({len(library)} bytes)"


def test_another_plugin_is_not_taken_for_it(tmp_path: Path) -> None:
    found = engine_beside(tmp_path, b"\x7fELF a library", b"..\x7fELF another library")
    assert found.made_by["plugin"].startswith("a shared library is embedded at byte 34")


def test_a_plugin_library_without_its_entry_point(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(b"\x7fELF\0setLoggerFinder\0")
    found = inspect_path(path)
    assert found.kind == "plugin"
    assert found.made_by["entry points"] == "setLoggerFinder"
    assert "no getCreators" in found.notes[0]


def test_a_bundle(built_bundle: Path) -> None:
    found = inspect_path(built_bundle)
    assert found.kind == "bundle"
    assert found.config == TINY
    assert found.notes == ("all 3 files match the manifest's sha256",)
    assert found.made_by["verdict when built"] == "pass"
    assert [part.kind for part in found.parts] == ["onnx"]


def test_a_changed_bundle_is_shown_as_changed(bundle: Path) -> None:
    (bundle / "model.onnx.data").write_bytes(b"short")
    assert any(
        note.startswith("NOT as it was built: model.onnx.data has 5 bytes") for note in inspect_path(bundle).notes
    )


def test_a_folder_that_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"is not a bundle: it has no manifest\.json"):
        inspect_path(tmp_path)


@pytest.mark.parametrize("body", [b"", b"\0", b"\x08\x0a", b"text\n" * 100, bytes(range(256))])
def test_what_is_none_of_them(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(body)
    with pytest.raises(UsageError):
        inspect_path(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    head=st.sampled_from([b"", b"vtrt", b"ftrt", b"\x7fELF", b"\x08\x0a", struct.pack("<Q", 40) + b"{", b"\x3a\x04"]),
    rest=st.binary(max_size=200),
)
def test_no_bytes_are_a_bug(tmp_path: Path, head: bytes, rest: bytes) -> None:
    """Whatever a file holds, inspecting it ends in facts or in one of the errors made for users."""
    path = tmp_path / "file"
    path.write_bytes(head + rest)
    try:
        assert inspect_path(path).num_bytes == len(head + rest)
    except AndreaError as error:
        assert str(error)


def test_something_that_is_neither_file_nor_folder() -> None:
    with pytest.raises(UsageError, match="is neither a file nor a folder"):
        inspect_path(Path("/dev/null"))


def test_json_is_json(built_bundle: Path, checkpoint: Path) -> None:
    document = json.loads(json.dumps(inspection_as_json(inspect_path(checkpoint)), allow_nan=False))
    assert document["parameters"]["exact"] == 186_176
    assert document["config"]["d_model"] == 64
    document = json.loads(json.dumps(inspection_as_json(inspect_path(built_bundle)), allow_nan=False))
    assert document["parts"][0]["kind"] == "onnx"
    assert document["parts"][0]["arithmetic"] == document["arithmetic"]
