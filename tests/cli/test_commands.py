"""The commands doing their work: what they print on stdout, on stderr, as JSON, and with which exit code."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from andrea_export.sessions.base import Availability
from andrea_export.sessions.torch_reference import TorchSession
from andrea_export.weights.load import LoadedModel, load_model, save_checkpoint
from tests.conftest import Andrea, add_engine_entry


def plant_fault(bundle: Path) -> None:
    """One weight + 1.0 in the bundle's ONNX file, as a bad copy or a bad edit would leave it."""
    model = onnx.load(bundle / "model.onnx")
    tensor = next(entry for entry in model.graph.initializer if entry.name == "blocks.1.attn.proj.weight")
    array = numpy_helper.to_array(tensor).copy()
    array[3, 5] += np.float32(1.0)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    (bundle / "model.onnx.data").unlink()
    onnx.save(model, bundle / "model.onnx", save_as_external_data=True, location="model.onnx.data")


# --- build ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def build(andrea: Andrea, tmp_path: Path, checkpoint: Path, cache_dir: Path) -> Callable[..., object]:
    """Builds the ONNX target of the tiny checkpoint into ``out``."""
    return lambda *options: andrea(
        "build", tmp_path / "out", "--checkpoint", checkpoint, "--target", "onnx", "--cache-dir", cache_dir, *options
    )


def test_build_says_what_it_made_and_proved_and_then_reuses_it(build: Andrea, tmp_path: Path) -> None:
    first = build()
    assert first.code == 0, first.stderr
    lines = first.stdout.splitlines()
    assert lines[0].startswith(f"PASS {tmp_path / 'out'}: ")
    assert "weights: tiny.safetensors (sha256 " in first.stdout
    assert "onnx …" in first.stderr.splitlines()
    assert any(line.startswith("validate: ") for line in first.stderr.splitlines())
    assert "\x1b" not in first.stderr + first.stdout  # neither is a terminal, so no escape sequences
    for text in ("model.onnx.data", "onnxruntime-cpu", "formula: budget = ", f"report: {tmp_path / 'out/report.json'}"):
        assert text in first.stdout, text
    assert "untrained" not in first.stdout
    again = build("--json")
    document = json.loads(again.stdout)
    assert again.code == 0
    assert document["verdict"] == "pass"
    assert document["trained"] is True
    assert [step["name"] for step in document["steps"] if not step["reused"]] == []
    assert all(step["why"] for step in document["steps"])
    assert set(document["files"]) == {"model.onnx", "model.onnx.data", "report.json"}
    forced = build("--force", "--json")
    assert not any(step["reused"] for step in json.loads(forced.stdout)["steps"])


def test_the_default_output_is_the_presets_name_and_untrained_weights_are_called_so(
    andrea: Andrea, tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('preset = "andrea-12m"\ntargets = ["onnx"]\nseed = 5\n')
    outcome = andrea("build", "--recipe", recipe, "--preset", "andrea-tiny", "--cache-dir", cache_dir)
    assert outcome.code == 0, outcome.stderr
    assert (tmp_path / "andrea-tiny" / "manifest.json").is_file()
    assert "weights: untrained weights (GPT-2 initialisation, seed 5)" in outcome.stdout
    stored = json.loads((tmp_path / "andrea-tiny" / "manifest.json").read_text())["recipe"]
    assert (stored["preset"], stored["seed"], stored["targets"]) == ("andrea-tiny", 5, ["onnx"])
    run = andrea("run", "andrea-tiny", "--tokens", "5")
    assert run.code == 0
    assert "untrained weights" in run.stderr
    assert "untrained" not in run.stdout


def test_a_build_whose_proof_fails_exits_1(build: Andrea, monkeypatch: pytest.MonkeyPatch) -> None:
    from andrea_export.graph.canonical import export

    def faulty(loaded: object, folder: Path) -> Path:
        path = exported(loaded, folder)
        plant_fault(folder)
        return path

    exported = export.export_canonical
    monkeypatch.setattr(export, "export_canonical", faulty)
    outcome = build("--force")
    assert outcome.code == 1
    assert outcome.stdout.splitlines()[0].startswith("FAIL ")
    assert outcome.stdout.splitlines()[0].endswith("the first layer at fault is blocks.1.attn.proj")
    assert "expected" in outcome.stdout and "obtained" in outcome.stdout


def test_a_pass_says_what_it_does_not_speak_for() -> None:
    from andrea_export.report.render.terminal import verdict_line
    from andrea_export.report.schema import Candidate, LayerRow, Report

    logits = LayerRow(name="logits", candidate="onnxruntime-cpu", verdict="pass", metrics={}, budget={})
    candidates = (
        Candidate(name="onnxruntime-cpu", verdict="pass"),
        Candidate(name="tensorrt-rtx-fp32", verdict="not-measured", reason="needs a GPU: no driver"),
        Candidate(name="tensorrt-rtx-fp16", verdict="not-measured", reason="needs a GPU: no driver"),
    )
    report = Report(reference={}, inputs={}, candidates=candidates, checks=(), layers=(logits,))
    assert verdict_line(report, "tiny").endswith(
        "PASS tiny: 1 layer comparison within budget; NOT MEASURED: tensorrt-rtx-fp32, tensorrt-rtx-fp16 "
        "(needs a GPU: no driver)"
    )


def test_weights_that_were_only_initialised_stay_untrained_in_a_checkpoint(
    andrea: Andrea, tmp_path: Path, cache_dir: Path
) -> None:
    loaded = load_model(preset="andrea-tiny", checkpoint=None, seed=3)
    save_checkpoint(loaded.model, tmp_path / "w.safetensors", origin=loaded.origin)
    told = json.loads(andrea("inspect", tmp_path / "w.safetensors", "--json").stdout)
    assert (told["weights"], told["trained"]) == ("untrained weights (GPT-2 initialisation, seed 3)", False)
    options = ("--checkpoint", tmp_path / "w.safetensors", "--target", "onnx", "--cache-dir", cache_dir)
    built = andrea("build", tmp_path / "out", *options, "--json")
    document = json.loads(built.stdout)
    assert document["trained"] is False
    assert document["weights"].startswith("untrained weights, saved in w.safetensors (sha256 ")
    assert document["candidates"][0]["name"] == "onnxruntime-cpu"
    assert {"name", "verdict", "reason"} == set(document["candidates"][0])
    assert document["not_measured"] == []
    assert "untrained weights" in andrea("run", tmp_path / "out", "--tokens", "5").stderr


def test_a_precision_that_no_target_comes_in_is_refused(andrea: Andrea, tmp_path: Path) -> None:
    """model.onnx is always fp32: asked for fp16 alone, there is nothing to build in it."""
    outcome = andrea("build", tmp_path / "out", "--preset", "andrea-tiny", "--target", "onnx", "--precision", "fp16")
    assert outcome.code == 2 and "no target of this recipe comes in fp16" in outcome.error
    assert not (tmp_path / "out").exists()


# --- validate ---------------------------------------------------------------------------------------------------------


def test_validate_passes_what_was_built(andrea: Andrea, built_bundle: Path, cache_dir: Path) -> None:
    outcome = andrea("validate", built_bundle, "--cache-dir", cache_dir)
    assert outcome.code == 0, outcome.stderr
    assert outcome.stdout.startswith(f"PASS {built_bundle}: ")
    assert "checked: files: all 3 files match" in outcome.stdout


def test_validate_names_the_layer_at_fault(andrea: Andrea, bundle: Path, checkpoint: Path, cache_dir: Path) -> None:
    plant_fault(bundle)
    outcome = andrea("validate", bundle, "--checkpoint", checkpoint, "--cache-dir", cache_dir)
    assert outcome.code == 1
    lines = outcome.stdout.splitlines()
    assert lines[0] == f"FAIL {bundle}: the first layer at fault is blocks.1.attn.proj"
    header = next(index for index, line in enumerate(lines) if line.startswith("  layer ") and "obtained" in line)
    assert lines[header - 1] == "out of budget in onnxruntime-cpu"
    assert lines[header + 1].split()[:4] == ["blocks.1.attn.proj", "local", "max_abs", "≤"]
    assert max(map(len, lines[header : header + 10])) <= 80
    assert len(lines) > 20
    assert lines[-1] == lines[0]
    # Without the checkpoint the reference has the bundle's own weights; their hashes still tell which are wrong.
    as_json = andrea("validate", bundle, "--cache-dir", cache_dir, "--json")
    document = json.loads(as_json.stdout)
    assert as_json.code == 1
    assert (document["verdict"], document["first_failure"]) == ("fail", "blocks.1.attn.proj")


def test_what_nothing_could_measure_ends_in_3_whichever_command_says_so(
    andrea: Andrea, build: Andrea, built_bundle: Path, cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "andrea_export.compare.sources.onnx_source.provider_availability",
        lambda name: Availability(available=False, reason="not here"),
    )
    validated = andrea("validate", built_bundle, "--cache-dir", cache_dir, "--json")
    report = tmp_path / "report.json"
    report.write_text(validated.stdout)
    for outcome in (validated, andrea("check", report), build("--force")):
        assert outcome.code == 3
        assert "not measured: onnxruntime-cpu: not here" in outcome.stderr


def test_validate_against_the_checkpoint_itself(
    andrea: Andrea, built_bundle: Path, checkpoint: Path, cache_dir: Path
) -> None:
    outcome = andrea("validate", built_bundle, "--checkpoint", checkpoint, "--cache-dir", cache_dir, "--json")
    assert json.loads(outcome.stdout)["verdict"] == "pass"


def test_a_moved_bundle_works_from_any_folder(
    andrea: Andrea, built_bundle: Path, tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = Path(shutil.copytree(built_bundle, tmp_path / "elsewhere" / "renamed"))
    monkeypatch.chdir(moved / "..")
    assert andrea("validate", "renamed", "--cache-dir", cache_dir).code == 0
    monkeypatch.chdir("/")
    assert andrea("run", moved, "--tokens", "5").code == 0


# --- run --------------------------------------------------------------------------------------------------------------


def test_run_prints_tokens_alone_on_stdout(andrea: Andrea, built_bundle: Path) -> None:
    outcome = andrea("run", built_bundle, "--tokens", "5, 17,42", "--max-new-tokens", 6)
    assert outcome.code == 0, outcome.stderr
    tokens = [int(part) for part in outcome.stdout.split(",")]
    assert len(tokens) == 6
    assert outcome.stdout == ",".join(map(str, tokens)) + "\n"
    assert "on onnxruntime-cpu" in outcome.stderr
    as_json = json.loads(andrea("run", built_bundle, "--tokens", "5,17,42", "--max-new-tokens", 6, "--json").stdout)
    assert as_json["prompt"] == [5, 17, 42]
    assert as_json["tokens"] == tokens
    assert (as_json["provider"], as_json["trained"]) == ("cpu", True)


def test_run_streams(andrea: Andrea, built_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(sys.stdout, "write", written.append)
    andrea("run", built_bundle, "--tokens", "5", "--max-new-tokens", 4)
    assert len([part for part in written if part.strip()]) == 4


# --- inspect ----------------------------------------------------------------------------------------------------------


def test_inspect_a_bundle(andrea: Andrea, built_bundle: Path) -> None:
    outcome = andrea("inspect", built_bundle)
    assert outcome.code == 0, outcome.stderr
    for text in (
        "architecture: andrea-tiny",
        "exact, with tied head, biases, norms with weight and bias: 186,176",
        "counted in this file: 186,176, as computed",
        "past_key_values.1.value",
        "com.andrea::AndreaGelu",
        "verdict when built",
    ):
        assert text in outcome.stdout, text
    document = json.loads(andrea("inspect", built_bundle, "--json").stdout)
    assert (document["kind"], document["preset"]) == ("bundle", "andrea-tiny")


def test_inspect_a_checkpoint(andrea: Andrea, checkpoint: Path) -> None:
    outcome = andrea("inspect", checkpoint)
    assert outcome.code == 0
    assert outcome.stdout.startswith(f"{checkpoint}: checkpoint (andrea-export), 747.2 kB")
    assert "token_embed.weight" in outcome.stdout


# --- trace ------------------------------------------------------------------------------------------------------------


def test_trace_a_bundle(andrea: Andrea, built_bundle: Path) -> None:
    outcome = andrea("trace", built_bundle, "--block", "1")
    assert outcome.code == 0, outcome.stderr
    assert outcome.stdout.startswith("token 42 at position 2 of 5,17,42 through block 1 of 2")
    assert "attention weights of onnxruntime-cpu: node output" in outcome.stdout
    assert "GELU: g = GELU(h)   blocks.1.mlp.gelu [256]" in outcome.stdout
    assert "torch: fp32, torch " in outcome.stdout
    assert max(map(len, outcome.stdout.splitlines())) <= 100
    document = json.loads(andrea("trace", built_bundle, "--json", "--position", "0").stdout)
    assert document["position"] == 0
    assert document["backends"] == ["torch", "onnxruntime-cpu"]


def test_trace_without_a_bundle_needs_torch_alone(andrea: Andrea, checkpoint: Path) -> None:
    outcome = andrea("trace", "--checkpoint", checkpoint, "--backend", "torch", "--json")
    document = json.loads(outcome.stdout)
    assert document["backends"] == ["torch"]
    assert len(document["steps"]) == 14


def test_trace_exports_what_a_backend_needs(andrea: Andrea) -> None:
    outcome = andrea("trace", "--preset", "andrea-tiny", "--backend", "onnxruntime-cpu", "--backend", "torch", "--json")
    document = json.loads(outcome.stdout)
    assert document["backends"] == ["onnxruntime-cpu", "torch"]
    assert document["weights"] == "untrained weights (GPT-2 initialisation, seed 0)"


def test_trace_an_engine_beside_torch(
    andrea: Andrea, bundle: Path, tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is played by torch in the engine's precision: what is shown is what an engine's outputs hold."""
    add_engine_entry(bundle, tiny.config.n_layer)
    opened: list[Path] = []

    class Backend:
        def can_run(self) -> Availability:
            return Availability(available=True)

        def open(self, engine: Path) -> TorchSession:
            opened.append(engine)
            return TorchSession(tiny.model, precision="fp16")

    monkeypatch.setattr("andrea_export.lesson.backends.engine_backend", lambda target: Backend())
    outcome = andrea("trace", bundle, "--backend", "torch", "--backend", "tensorrt-rtx-fp16")
    assert outcome.code == 0, outcome.stderr
    assert opened == [bundle / "engines/tensorrt-rtx-fp16.plan"]
    lines = [line for line in outcome.stdout.splitlines() if line.strip().startswith("tensorrt-rtx-fp16 ")]
    assert "tensorrt-rtx-fp16: fp16, 1.7.1.116" in outcome.stdout
    assert len(lines) == 14
    assert [line for line in lines if "fused away" not in line] == [lines[3], lines[4]]  # k and v


# --- doctor -----------------------------------------------------------------------------------------------------------


def test_doctor_exits_0_whatever_it_finds(andrea: Andrea, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    outcome = andrea("doctor")
    assert outcome.code == 0
    assert outcome.stderr == ""
    assert "export" in outcome.stdout
    assert " steps can be done here" in outcome.stdout.splitlines()[-1] + outcome.stdout.splitlines()[-2]
    assert max(map(len, outcome.stdout.splitlines())) <= 80
    document = json.loads(andrea("doctor", "--json").stdout)
    assert {step["name"] for step in document["steps"]} >= {"export", "compile-plugin", "run-cpu", "gpu"}


def test_doctor_can_be_a_gate(andrea: Andrea, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("andrea_export.doctor.findings.why_no_gpu", lambda: "needs a GPU: no driver")
    assert andrea("doctor", "--require", "export").code == 0
    outcome = andrea("doctor", "--require", "export", "--require", "gpu", "--json")
    assert outcome.code == 3
    assert outcome.error == "gpu: needs a GPU: no driver"
    assert json.loads(outcome.stdout)["steps"]
