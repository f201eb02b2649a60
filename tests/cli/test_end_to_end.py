"""The whole job through the command line: build, prove, move, validate, run; and the real ANDREA-120M once."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from andrea_export.bundle.layout import MANIFEST, REPORT
from tests.conftest import Andrea, BuildByCommand, build_by_command


@pytest.fixture(scope="module")
def with_engines(checkpoint: Path, cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> BuildByCommand:
    """The tiny model with engines of every precision and their native twins. Read only."""
    folder = tmp_path_factory.mktemp("engines")
    recipe = folder / "recipe.toml"
    recipe.write_text(
        'native_twin = true\nprecisions = ["fp32", "fp16", "bf16"]\n[profile]\nbatch = {min = 1, opt = 1, max = 2}'
    )
    options = ("--checkpoint", checkpoint, "--recipe", recipe, "--target", "tensorrt-rtx", "--cache-dir", cache_dir)
    return build_by_command(folder / "bundle", *options)


def test_engines_of_every_precision_and_their_native_twins(with_engines: BuildByCommand) -> None:
    output, done = with_engines.bundle, with_engines.done
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


def test_an_engine_that_cannot_run_here_is_not_measured_never_passed(with_engines: BuildByCommand) -> None:
    from andrea_export.targets.tensorrt.flavours import engine_backend

    report = json.loads((with_engines.bundle / REPORT).read_text())
    (engine,) = [candidate for candidate in report["candidates"] if candidate["name"] == "tensorrt-rtx-fp32"]
    runnable = engine_backend("tensorrt-rtx").can_run()
    if runnable.available:
        assert engine["verdict"] in ("pass", "fail")
    else:
        assert engine["verdict"] == "not-measured" and engine["reason"] == runnable.reason
        assert not [row for row in report["layers"] if row["candidate"] == "tensorrt-rtx-fp32"]


def test_the_same_build_again_makes_nothing_again(
    andrea: Andrea, with_engines: BuildByCommand, checkpoint: Path, cache_dir: Path
) -> None:
    recipe = with_engines.bundle.parent / "recipe.toml"
    again = andrea(
        "build", with_engines.bundle, "--checkpoint", checkpoint, "--recipe", recipe, "--target", "tensorrt-rtx",
        "--cache-dir", cache_dir, "--json",
    )  # fmt: skip
    assert again.code == 0
    assert all(step["reused"] for step in json.loads(again.stdout)["steps"])


@pytest.mark.full
def test_andrea_120m_from_a_checkpoint_to_tokens(
    andrea: Andrea, andrea_120m_build: BuildByCommand, tmp_path: Path
) -> None:
    """The demo: one command, 12 plugin layers, every layer compared, and tokens out of the moved bundle.

    Its channels are a trained model's: a few dwarf the others, which random weights would not show.
    """
    output, done = andrea_120m_build.bundle, andrea_120m_build.done
    assert done.code == 0, done.stderr
    report = json.loads((output / REPORT).read_text())
    assert report["verdict"] == "pass" and report["first_failure"] is None
    rows = [row["name"] for row in report["layers"] if row["candidate"] == "onnxruntime-cpu"]
    assert len(rows) == 6 + 12 * 12
    (engine,) = [e for e in json.loads((output / MANIFEST).read_text())["engines"] if "rtx" in e["file"]]
    assert engine["facts"]["num_plugin_layers"] == engine["facts"]["num_gelu_nodes"] == 12
    assert (output / "model.onnx.data").stat().st_size < 4 * 92_331_264 + 64 * 1024

    moved = Path(shutil.copytree(output, tmp_path / "moved"))
    ran = andrea("run", moved, "--tokens", "5,17,99", "--max-new-tokens", "4")
    assert ran.code == 0, ran.stderr
    assert re.fullmatch(r"\d+(,\d+){3}\n", ran.stdout)
    assert "untrained weights" in ran.stderr


def test_a_planted_fault_ends_in_exit_code_1_with_the_layer_on_the_screen(andrea: Andrea, bundle: Path) -> None:
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
