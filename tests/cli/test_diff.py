"""The verbs diff, record and check: exit codes, what they write, and every bad input as one clear line."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from andrea_export.core.names import CONFIG_KEY, TRACE_KEY
from andrea_export.graph.canonical.export import export_canonical
from andrea_export.weights.load import load_model, save_checkpoint
from andrea_model.config import AndreaConfig
from andrea_model.model import build_model
from support.paths import ROOT

Andrea = Callable[..., Any]
CONFIG = AndreaConfig(d_model=32, n_head=2, n_layer=1, n_ctx=24, vocab_size=258, mlp_dim=32)
QUICK = "--no-language-model"


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint and its ONNX file. Read only."""
    folder = tmp_path_factory.mktemp("pair")
    save_checkpoint(build_model(CONFIG, seed=3), folder / "model.safetensors")
    return folder / "model.safetensors", export_canonical(_loaded(folder / "model.safetensors"), folder)


@pytest.fixture(scope="session")
def faulty(pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ONNX file with one weight changed. Read only."""
    model = onnx.load(pair[1])
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == "blocks.0.mlp.proj.weight")
    array = numpy_helper.to_array(tensor).copy()
    array[1, 2] += 1.0
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    file = tmp_path_factory.mktemp("faulty") / "faulty.onnx"
    onnx.save(model, file)
    return file


def _loaded(checkpoint: Path) -> Any:
    return load_model(preset=None, checkpoint=checkpoint, seed=0)


def test_a_clean_pair_passes_and_every_format_is_written(
    andrea: Andrea, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = andrea("diff", *pair, "--output", out)
    assert result.code == 0 and result.stdout.startswith("PASS ")
    assert {file.name for file in out.iterdir()} == {"report.json", "report.html", "report.md", "junit.xml"}
    document = json.loads((out / "report.json").read_text())
    schemas = ROOT / "andrea_export" / "schemas"
    jsonschema.validate(document, json.loads((schemas / "report-2.json").read_text()))
    text = (out / "report.json").read_text()
    assert str(tmp_path) not in text and str(pair[0].parent) not in text


def test_a_fault_is_exit_1_and_named_on_the_first_line(andrea: Andrea, pair: tuple[Path, Path], faulty: Path) -> None:
    result = andrea("diff", pair[0], faulty)
    assert result.code == 1
    assert result.stdout.splitlines()[0].startswith("FAIL ") and "blocks.0.mlp.proj" in result.stdout.splitlines()[0]


def test_json_is_one_document(andrea: Andrea, pair: tuple[Path, Path]) -> None:
    result = andrea("diff", *pair, QUICK, "--json")
    assert result.code == 0 and json.loads(result.stdout)["verdict"] == "pass"


def test_two_checkpoints_and_their_precisions(andrea: Andrea, pair: tuple[Path, Path]) -> None:
    assert andrea("diff", pair[0], f"{pair[0]}#fp16", QUICK).code == 0
    result = andrea("diff", pair[0], f"{pair[0]}#fp8", QUICK)
    assert result.code == 2 and "unknown precision 'fp8'" in result.error


def test_a_trace_can_be_either_side(andrea: Andrea, pair: tuple[Path, Path], faulty: Path, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    assert andrea("record", pair[0], "--output", ours).code == 0
    recorded = andrea("record", faulty, "--output", theirs, "--json")
    assert recorded.code == 0 and json.loads(recorded.stdout)["name"] == "onnxruntime-cpu"
    assert andrea("diff", ours, pair[1]).code == 0
    assert "blocks.0.mlp.proj" in andrea("diff", pair[0], theirs).stdout.splitlines()[0]
    assert andrea("diff", ours, theirs).code == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["ours.safetensors", "theirs.safetensors"]


def test_check_judges_again_without_running(
    andrea: Andrea, pair: tuple[Path, Path], faulty: Path, tmp_path: Path
) -> None:
    andrea("diff", *pair, QUICK, "--output", tmp_path / "clean")
    andrea("diff", pair[0], faulty, QUICK, "--output", tmp_path / "faulty")
    clean, bad = tmp_path / "clean" / "report.json", tmp_path / "faulty" / "report.json"
    assert andrea("check", clean).code == 0 and andrea("check", bad).code == 1
    policy = tmp_path / "policy.toml"
    policy.write_text(
        'schema = "andrea-export/policy/1"\n[[layer]]\nlayers = ["*"]\nreason = "a test"\n'
        "limits = { max_abs = 1e9, relative_l2 = 1e9 }\n"
    )
    assert andrea("check", bad, "--policy", policy).code == 0
    assert andrea("check", clean, "--baseline", clean).code == 0
    worse = andrea("check", bad, "--policy", policy, "--baseline", clean, "--json")
    assert worse.code == 1
    assert "fail" in {row["verdict"] for row in json.loads(worse.stdout)["ratchet"]}


def test_what_cannot_be_measured_is_exit_3(andrea: Andrea, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip  # noqa: E501
    from andrea_export.sessions.base import Availability

    monkeypatch.setattr(
        "andrea_export.compare.sources.onnx_source.provider_availability",
        lambda name: Availability(available=False, reason="not here"),
    )
    result = andrea("diff", *pair, QUICK)
    assert result.code == 3 and "not measured: onnxruntime-cpu: not here" in result.stderr


# --- bad input --------------------------------------------------------------------------------------------------


def refused(result: Any, message: str) -> None:
    assert result.code == 2, result.stdout + result.stderr
    assert message in result.error and result.stdout == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no token in it"),
        ("\n\n", "no token in it"),
        ("1,2,x", "line 1: 'x' is not a token id"),
        ("5,258", "row 1: token 258 is outside the vocabulary (0 to 257)"),
        ("-1", "token -1 is outside"),
        (",".join(["1"] * 25), "row 1 has 25 tokens, and the model has 24 positions"),
        ("1\n" * 9, "9 rows, expected at most 8"),
        ("[[1, 2], [true]]", "True is not a token id"),
        ("[[1, 2]", "is not JSON"),
        ("[[1], []]", "row 2 is empty"),
    ],
)
def test_token_files(andrea: Andrea, pair: tuple[Path, Path], tmp_path: Path, content: str, message: str) -> None:
    tokens = tmp_path / "tokens.txt"
    tokens.write_text(content)
    out = tmp_path / "out"
    refused(andrea("diff", *pair, "--inputs", tokens, "--output", out), message)
    assert not out.exists()


def test_token_files_that_are_none(andrea: Andrea, pair: tuple[Path, Path], tmp_path: Path) -> None:
    refused(andrea("diff", *pair, "--inputs", tmp_path / "no"), "No such file")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    refused(andrea("diff", *pair, "--inputs", tmp_path / "binary"), "not text")
    (tmp_path / "empty.txt").write_text("")
    refused(andrea("diff", *pair, "--text", tmp_path / "empty.txt"), "is empty")


def test_token_rows_are_compared_in_one_padded_batch(andrea: Andrea, pair: tuple[Path, Path], tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.txt"
    tokens.write_text("1,2,3,4,5,6,7,8\n9 10 11\n7")
    result = andrea("diff", *pair, "--inputs", tokens, QUICK, "--json")
    assert result.code == 0
    assert json.loads(result.stdout)["inputs"]["prefill"] == {
        "batch": 3,
        "sequence": 8,
        "past": 0,
        "padding": [0, 5, 7],
    }
    tokens.write_text("1,2,3,4,5,6,7,8")
    inputs = json.loads(andrea("diff", *pair, "--inputs", tokens, QUICK, "--json").stdout)["inputs"]
    assert inputs["decode"] == {"batch": 1, "sequence": 4, "past": 4, "padding": [0]}


@pytest.mark.parametrize("change", [{"d_model": 64}, {"vocab_size": 300}, {"n_layer": 2}])
def test_mismatched_models(andrea: Andrea, pair: tuple[Path, Path], tmp_path: Path, change: dict[str, int]) -> None:
    other = tmp_path / "other.safetensors"
    save_checkpoint(build_model(replace(CONFIG, **change), seed=0), other)
    [(key, value)] = change.items()
    refused(andrea("diff", other, pair[1], "--output", tmp_path / "out"), "is of another architecture")
    assert f"{key} {getattr(CONFIG, key)} (reference: {value})" in andrea("diff", other, pair[1]).error
    assert not (tmp_path / "out").exists()


def test_things_that_cannot_be_compared(andrea: Andrea, pair: tuple[Path, Path], tmp_path: Path) -> None:
    refused(andrea("diff", pair[0], tmp_path / "no.onnx"), "no such file or folder")
    (tmp_path / "empty").write_bytes(b"")
    refused(andrea("diff", pair[0], tmp_path / "empty"), "is empty")
    (tmp_path / "garbage.onnx").write_bytes(b"\x93" * 999)
    refused(andrea("diff", pair[0], tmp_path / "garbage.onnx"), "cannot be compared")
    refused(andrea("diff", pair[0], tmp_path), "is not a bundle")
    refused(andrea("diff", pair[0], f"{pair[1]}#fp16"), "is an ONNX file: '#fp16' names nothing in it")
    model = onnx.load(pair[1])
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "foreign.onnx")
    refused(andrea("diff", pair[0], tmp_path / "foreign.onnx"), "does not say what model it is")


def test_a_pipe_is_refused_and_not_waited_for(andrea: Andrea, pair: tuple[Path, Path], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    outcome = andrea("diff", pair[0], tmp_path / "pipe")
    assert (outcome.code, outcome.error) == (2, f"{tmp_path / 'pipe'} is neither a file nor a folder")


@pytest.mark.parametrize("name", ["list.json", "model.textproto", "model.onnxtxt"])
def test_a_file_is_read_by_its_content_whatever_it_is_called(
    andrea: Andrea, pair: tuple[Path, Path], tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("[1, 2]")
    outcome = andrea("diff", pair[0], tmp_path / name)
    assert outcome.code == 2 and f"{name} is not an ONNX file" in outcome.error and outcome.hint


def test_a_checkpoint_that_is_damaged(andrea: Andrea, pair: tuple[Path, Path], tmp_path: Path) -> None:
    short = tmp_path / "short.safetensors"
    short.write_bytes(pair[0].read_bytes()[:-10])
    refused(andrea("diff", short, pair[1]), "not a whole safetensors file")
    tensors = load_file(pair[0])
    tensors["ln_f.weight"][0] = np.nan
    poisoned = tmp_path / "poisoned.safetensors"
    save_file(tensors, poisoned, metadata={CONFIG_KEY: json.dumps(vars_of(CONFIG))})
    refused(andrea("diff", poisoned, pair[1]), "ln_f.weight (1 of 32 values)")


def test_nan_is_not_recorded_fails_live_and_is_refused_in_a_trace(
    andrea: Andrea, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    model = onnx.load(pair[1])
    bias = next(tensor for tensor in model.graph.initializer if tensor.name == "blocks.0.mlp.fc.bias")
    values = np.array(numpy_helper.to_array(bias))
    values[3] = np.nan
    bias.CopyFrom(numpy_helper.from_array(values, bias.name))
    onnx.save(model, tmp_path / "nan.onnx")
    trace = tmp_path / "trace.safetensors"
    recorded = andrea("record", tmp_path / "nan.onnx", QUICK, "--output", trace)
    assert recorded.code == 1 and "not recorded: blocks.0.mlp.fc is NaN, first at [0, 0, 3]" in recorded.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nan.onnx"]
    live = andrea("diff", pair[0], tmp_path / "nan.onnx", QUICK)
    assert live.code == 1 and "blocks.0.mlp.fc" in live.stdout.splitlines()[0]

    assert andrea("record", pair[1], QUICK, "--output", trace).code == 0
    tensors = load_file(trace)
    with safe_open(trace, framework="np") as file:
        header = json.loads(file.metadata()[TRACE_KEY])
    name = "layers/prefill/ln_f"
    tensors[name][0, 1, 2] = np.nan
    header["sha256"][name] = hashlib.sha256(tensors[name].tobytes()).hexdigest()
    save_file(tensors, trace, metadata={TRACE_KEY: json.dumps(header)})
    output = tmp_path / "report"
    for sides in ((pair[0], trace), (trace, pair[1])):
        refused(andrea("diff", *sides, QUICK, "--output", output), f"{name} is NaN at [0, 1, 2]")
    assert not output.exists()


def vars_of(config: AndreaConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in AndreaConfig.__dataclass_fields__}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("k = 3", "schema is None"),
        ('schema = "andrea-export/policy/1"\nks = 3', "unknown key 'ks'"),
        (
            'schema = "andrea-export/policy/1"\n[[layer]]\nlayers = ["blocks.7.*"]\nreason = "x"',
            "'blocks.7.*' names no layer",
        ),
    ],
)
def test_policies(andrea: Andrea, pair: tuple[Path, Path], tmp_path: Path, content: str, message: str) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(content)
    refused(andrea("diff", *pair, "--policy", policy, "--output", tmp_path / "out"), message)
    assert not (tmp_path / "out").exists()
    refused(andrea("diff", *pair, "--policy", tmp_path / "no.toml"), "No such file")


def test_reports(andrea: Andrea, pair: tuple[Path, Path], tmp_path: Path) -> None:
    andrea("diff", *pair, QUICK, "--output", tmp_path)
    good = json.loads((tmp_path / "report.json").read_text())
    file = tmp_path / "other.json"
    for content, message in (
        (json.dumps({**good, "schema": "andrea-export/report/3"}), "has schema 'andrea-export/report/3'"),
        (json.dumps({**good, "schema": "other"}), "is not a report"),
        ("[]", "is not a report"),
        ("{", "is not JSON"),
        (json.dumps({**good, "layers": [{"name": "x"}]}), "is damaged: layers.0"),
        (json.dumps({**good, "unknown": 1}), "is damaged: unknown"),
    ):
        file.write_text(content)
        refused(andrea("check", file), message)
        refused(andrea("diff", *pair, "--baseline", file), message)
    refused(andrea("check", tmp_path / "no.json"), "No such file")


def test_outputs(andrea: Andrea, pair: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    refused(andrea("diff", *pair, "--output", tmp_path / "file"), "is a file, expected a folder")
    refused(andrea("record", pair[0], "--output", tmp_path), "is a folder")
    refused(andrea("record", pair[0], "--output", tmp_path / "no" / "trace"), "does not exist")
    assert [file.name for file in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "precious"
