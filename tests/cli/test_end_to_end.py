"""The whole job through the command line: build, prove, move, validate, run; and the real ANDREA-120M once."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any, Protocol

import pytest

from andrea_export.bundle.layout import MANIFEST, REPORT
from andrea_export.weights.load import load_model, save_checkpoint
from support.model_traits import with_outlier_channels


class Outcome(Protocol):
    code: int
    stdout: str
    stderr: str


def test_engines_of_every_precision_and_their_native_twins(
    andrea: Any, checkpoint: Path, cache_dir: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'native_twin = true\nprecisions = ["fp32", "fp16", "bf16"]\n[profile]\nbatch = {min = 1, opt = 1, max = 2}'
    )
    output = tmp_path / "bundle"
    done = andrea(
        "build", output, "--checkpoint", checkpoint, "--recipe", recipe, "--target", "tensorrt-rtx",
        "--cache-dir", cache_dir, "--json",
    )  # fmt: skip
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "pass"
    engines = {f"tensorrt-rtx-{p}{twin}.plan" for p in ("fp32", "fp16", "bf16") for twin in ("", "-native")}
    assert {file.name for file in (output / "engines").iterdir()} == engines
    manifest = json.loads((output / MANIFEST).read_text())
    for entry in manifest["engines"]:
        facts = entry["facts"]
        assert facts["num_plugin_layers"] == (0 if entry["native_twin"] else 2)
        assert facts["plugin_embedded"] is not entry["native_twin"]
        assert facts["tf32"] is False
    assert manifest["target_gpus"]["plugins/libandrea_plugins.so"] == ["8.0", "8.9", "9.0", "9.0 PTX", "12.0"]
    assert manifest["target_gpus"]["engines/tensorrt-rtx-fp16.plan"] == ["8.0", "8.6", "8.9", "12.0", "12.1"]
    report = json.loads((output / REPORT).read_text())
    verdicts = {candidate["name"]: candidate["verdict"] for candidate in report["candidates"]}
    assert verdicts["onnxruntime-cpu"] == verdicts["onnxruntime-cpu-fp16"] == verdicts["plugin-maths-bf16"] == "pass"
    library = (output / "plugins" / "libandrea_plugins.so").read_bytes()
    assert library in (output / "engines" / "tensorrt-rtx-fp16.plan").read_bytes()
    assert library not in (output / "engines" / "tensorrt-rtx-fp16-native.plan").read_bytes()


def test_an_engine_that_cannot_run_here_is_not_measured_never_passed(
    andrea: Any, checkpoint: Path, cache_dir: Path, tmp_path: Path
) -> None:
    from andrea_export.targets.tensorrt.flavours import engine_backend

    output = tmp_path / "bundle"
    arguments = ("build", output, "--checkpoint", checkpoint, "--target", "tensorrt-rtx", "--cache-dir", cache_dir)
    assert andrea(*arguments).code == 0
    report = json.loads((output / REPORT).read_text())
    (engine,) = [candidate for candidate in report["candidates"] if candidate["name"] == "tensorrt-rtx-fp32"]
    runnable = engine_backend("tensorrt-rtx").can_run()
    if runnable.available:
        assert engine["verdict"] in ("pass", "fail")
    else:
        assert engine["verdict"] == "not-measured" and engine["reason"] == runnable.reason
        assert not [row for row in report["layers"] if row["candidate"] == "tensorrt-rtx-fp32"]
    again = andrea(*arguments, "--json")
    assert again.code == 0
    assert all(step["reused"] for step in json.loads(again.stdout)["steps"])


@pytest.mark.full
def test_andrea_120m_from_a_checkpoint_to_tokens(andrea: Any, cache_dir: Path, tmp_path: Path) -> None:
    """The demo: one command, 12 plugin layers, every layer compared, and tokens out of the moved bundle.

    Its channels are a trained model's: a few dwarf the others, which random weights would not show.
    """
    output, checkpoint = tmp_path / "andrea-120m", tmp_path / "outliers.safetensors"
    loaded = load_model(preset="andrea-120m", checkpoint=None, seed=0)
    save_checkpoint(with_outlier_channels(loaded.model), checkpoint, origin=loaded.origin)
    del loaded
    done = andrea("build", output, "--checkpoint", checkpoint, "--cache-dir", cache_dir, "--json")
    assert done.code == 0, done.stderr
    report = json.loads((output / REPORT).read_text())
    assert report["verdict"] == "pass" and report["first_failure"] is None
    rows = [row["name"] for row in report["layers"] if row["candidate"] == "onnxruntime-cpu"]
    assert len(rows) == 6 + 12 * 12
    (engine,) = [e for e in json.loads((output / MANIFEST).read_text())["engines"] if "rtx" in e["file"]]
    assert engine["facts"]["num_plugin_layers"] == engine["facts"]["num_gelu_nodes"] == 12
    assert (output / "model.onnx.data").stat().st_size < 4 * 92_331_264 + 64 * 1024

    moved = Path(shutil.move(output, tmp_path / "moved"))
    ran = andrea("run", moved, "--tokens", "5,17,99", "--max-new-tokens", "4")
    assert ran.code == 0, ran.stderr
    assert re.fullmatch(r"\d+(,\d+){3}\n", ran.stdout)
    assert "untrained weights" in ran.stderr


def test_a_planted_fault_ends_in_exit_code_1_with_the_layer_on_the_screen(andrea: Any, bundle: Path) -> None:
    import onnx
    from onnx import helper

    model = onnx.load(bundle / "model.onnx", load_external_data=False)
    node = next(node for node in model.graph.node if node.name == "blocks.1.mlp.gelu")
    node.CopyFrom(helper.make_node("Gelu", list(node.input), list(node.output), name=node.name, approximate="none"))
    onnx.save(model, bundle / "model.onnx")
    done = andrea("validate", bundle)
    assert done.code == 1
    first = done.stdout.splitlines()[0]
    assert first.startswith("FAIL") and "blocks.1.mlp.gelu" in first
    assert "model.onnx" in done.stdout
    refused = andrea("run", bundle, "--tokens", "1", "--max-new-tokens", "1")
    assert refused.code == 2 and "model.onnx" in refused.stderr and "manifest" in refused.stderr
