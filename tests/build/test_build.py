"""Building and building again: what is reused and why, what is refused, what the manifest says."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

import andrea_export
from andrea_export.build import build as building
from andrea_export.build.build import BuildResult, build_bundle
from andrea_export.bundle.layout import MANIFEST, MODEL, REPORT, WEIGHTS
from andrea_export.bundle.manifest import Bundle, open_bundle, seal
from andrea_export.core.errors import BundleError, CheckpointError, UsageError
from andrea_export.core.hashing import sha256_of
from andrea_export.core.progress import Silent
from andrea_export.operators.sources import andrea_gelu
from andrea_export.sessions.base import Availability
from andrea_export.sessions.onnxruntime import OnnxSession
from andrea_export.targets.recipe import recipe_from_mapping
from andrea_export.targets.tensorrt.backend import EngineBackend
from andrea_export.weights.load import LoadedModel, load_model, save_checkpoint


def build(
    output: Path, cache_dir: Path, checkpoint: Path | None, *, force: bool = False, **recipe: object
) -> BuildResult:
    return build_bundle(
        output,
        recipe_from_mapping({"targets": ["onnx"], "preset": "andrea-tiny", **recipe}, where="test"),
        checkpoint=checkpoint,
        force=force,
        cache_dir=cache_dir,
        progress=Silent(),
    )


def reused(result: BuildResult) -> dict[str, bool]:
    return {step.name: step.reused for step in result.steps}


def inodes(bundle: Path) -> dict[str, int]:
    return {file.name: file.stat().st_ino for file in bundle.rglob("*") if file.is_file()}


def test_a_second_build_touches_nothing_and_says_why(bundle: Path, cache_dir: Path, checkpoint: Path) -> None:
    before = inodes(bundle)
    result = build(bundle, cache_dir, checkpoint)
    assert reused(result) == {"onnx": True, "validate": True}
    assert all("nothing" in step.why for step in result.steps)
    assert result.report.verdict == "pass"
    assert inodes(bundle) == before


def test_force_reuses_nothing(bundle: Path, cache_dir: Path, checkpoint: Path) -> None:
    result = build(bundle, cache_dir, checkpoint, force=True)
    assert reused(result) == {"onnx": False, "validate": False}
    assert {step.why for step in result.steps} == {"made: --force"}


@pytest.mark.parametrize(
    ("part", "steps"),
    [
        ("targets.onnx.target.andrea_gelu", {"onnx": False, "validate": False}),
        ("targets.onnx.target.tool_sha256", {"onnx": False, "validate": False}),
        ("targets.onnx.target.installed_versions", {"onnx": False, "validate": False}),
        ("build.pipeline.plugin_sources_sha256", {"onnx": True, "validate": False}),
    ],
)
def test_a_step_is_made_again_when_anything_it_is_made_from_changes(
    part: str, steps: dict[str, bool], bundle: Path, cache_dir: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = {
        "targets.onnx.target.andrea_gelu": replace(andrea_gelu(), plugin_version="2"),
        "targets.onnx.target.tool_sha256": "another tool",
        "targets.onnx.target.installed_versions": {"torch": "99"},
        "build.pipeline.plugin_sources_sha256": "other sources",
    }[part]
    monkeypatch.setattr(f"andrea_export.{part}", lambda: changed)
    assert reused(build(bundle, cache_dir, checkpoint)) == steps


def test_a_checkpoint_that_changes_during_the_build_is_refused(
    tmp_path: Path, cache_dir: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training run that overwrites its latest checkpoint: no bundle may say it is of the one and hold the other."""
    latest = Path(shutil.copy(checkpoint, tmp_path / "latest.safetensors"))
    real = building.load_model

    def overwritten_before_it_is_loaded(*, preset: str | None, checkpoint: Path | None, seed: int) -> LoadedModel:
        save_checkpoint(load_model(preset="andrea-tiny", checkpoint=None, seed=9).model, latest)
        return real(preset=preset, checkpoint=checkpoint, seed=seed)

    monkeypatch.setattr(building, "load_model", overwritten_before_it_is_loaded)
    with pytest.raises(CheckpointError, match="changed while"):
        build(tmp_path / "bundle", cache_dir, latest)
    assert [file.name for file in tmp_path.iterdir()] == ["latest.safetensors"]


def test_another_checkpoint_is_another_model(bundle: Path, cache_dir: Path) -> None:
    result = build(bundle, cache_dir, None, seed=5)
    assert reused(result) == {"onnx": False, "validate": False}
    assert "has changed" in result.steps[0].why
    assert open_bundle(bundle).origin.seed == 5


def test_a_damaged_file_is_made_again(bundle: Path, cache_dir: Path, checkpoint: Path) -> None:
    weights = bundle / WEIGHTS
    content = bytearray(weights.read_bytes())
    content[4096] ^= 1
    weights.write_bytes(content)
    result = build(bundle, cache_dir, checkpoint)
    assert reused(result)["onnx"] is False and "not the ones that were sealed" in result.steps[0].why
    open_bundle(bundle)


def test_a_damaged_report_alone_is_made_again_from_kept_files(bundle: Path, cache_dir: Path, checkpoint: Path) -> None:
    (bundle / REPORT).write_text("{}")
    result = build(bundle, cache_dir, checkpoint)
    assert reused(result) == {"onnx": True, "validate": False}
    assert json.loads((bundle / REPORT).read_text())["verdict"] == "pass"
    open_bundle(bundle)


@pytest.mark.traces
def test_everything_but_engines_is_byte_reproducible(
    built: BuildResult, tmp_path: Path, cache_dir: Path, checkpoint: Path
) -> None:
    again = build(tmp_path / "again", cache_dir, checkpoint)
    for name in (MODEL, WEIGHTS, REPORT):
        assert sha256_of(again.bundle / name) == sha256_of(built.bundle / name), name


def test_the_manifest_states_what_had_a_say(built: BuildResult, checkpoint: Path) -> None:
    manifest = json.loads((built.bundle / MANIFEST).read_text())
    assert set(manifest["files"]) == {MODEL, WEIGHTS, REPORT}
    for name, entry in manifest["files"].items():
        file = built.bundle / name
        assert entry == {"sha256": sha256_of(file), "num_bytes": file.stat().st_size}
    assert manifest["origin"]["checkpoint_sha256"] == sha256_of(checkpoint)
    assert manifest["origin"]["checkpoint"] == checkpoint.name
    assert {"torch", "onnx", "onnxruntime", "andrea-export"} <= set(manifest["versions"])
    assert {"architecture", "python"} <= set(manifest["machine"])
    assert manifest["recipe"]["profile"]["past"] == {"min": 0, "opt": 128, "max": 1023}
    assert str(checkpoint.parent) not in (built.bundle / MANIFEST).read_text()


def test_untrained_weights_are_named_in_everything(tmp_path: Path, cache_dir: Path) -> None:
    result = build(tmp_path / "bundle", cache_dir, None)
    assert "untrained weights" in result.report.reference["weights"]
    assert "untrained weights" in (result.bundle / REPORT).read_text()
    metadata = {
        entry.key: entry.value for entry in onnx.load(result.bundle / MODEL, load_external_data=False).metadata_props
    }
    assert "untrained weights" in metadata["andrea.weights"]
    assert result.manifest.origin.trained is False


def test_a_moved_bundle_works_from_another_folder(bundle: Path, tmp_path: Path, cache_dir: Path) -> None:
    moved = Path(shutil.move(bundle, tmp_path / "elsewhere" / "b"))
    elsewhere = tmp_path / "cwd"
    elsewhere.mkdir()
    program = (
        "import sys; from pathlib import Path; from andrea_export.bundle.manifest import open_bundle\n"
        "from andrea_export.sessions.onnxruntime import OnnxSession\n"
        "print(OnnxSession(open_bundle(Path(sys.argv[1])).model).name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(moved)], cwd=elsewhere, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "onnxruntime-cpu"


def test_files_that_do_not_match_are_all_named(bundle: Path) -> None:
    (bundle / WEIGHTS).write_bytes(b"short")
    (bundle / REPORT).unlink()
    with pytest.raises(BundleError) as caught:
        open_bundle(bundle)
    assert f"{WEIGHTS} has 5 bytes" in str(caught.value) and f"{REPORT} is missing" in str(caught.value)
    assert isinstance(open_bundle(bundle, verify=False), Bundle)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "cannot be read"),
        ("[]", "has schema None"),
        ('{"schema": "andrea-export/manifest/99"}', "has schema 'andrea-export/manifest/99'"),
        ('{"schema": "andrea-export/manifest/3"}', "Field required"),
    ],
)
def test_a_manifest_that_is_none_is_one_clear_error(bundle: Path, content: str, message: str) -> None:
    (bundle / MANIFEST).write_text(content)
    with pytest.raises(BundleError, match=message):
        open_bundle(bundle)


def test_a_manifest_may_not_point_outside_its_bundle(bundle: Path) -> None:
    manifest = open_bundle(bundle).manifest
    entry = manifest.files[MODEL]
    seal(bundle, replace(manifest, files={**manifest.files, "../../etc/passwd": entry}))
    with pytest.raises(BundleError, match="outside the bundle"):
        open_bundle(bundle)


def test_folders_that_are_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no such folder"):
        open_bundle(tmp_path / "missing")
    with pytest.raises(BundleError, match=r"has no manifest\.json"):
        open_bundle(tmp_path)


def test_an_output_with_other_things_is_refused_before_any_work(tmp_path: Path, cache_dir: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UsageError, match="nothing a build made"):
        build(tmp_path, cache_dir, None)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_onnxruntime_takes_the_weights_of_a_bundle_made_of_kept_files(
    bundle: Path, cache_dir: Path, checkpoint: Path
) -> None:
    """onnxruntime refuses external weights with two names, which a hard link into the new bundle would give them."""
    (bundle / REPORT).unlink()
    build(bundle, cache_dir, checkpoint)
    assert (bundle / WEIGHTS).stat().st_nlink == 1
    with OnnxSession(bundle / MODEL) as session:
        assert "logits" in session.output_names


@pytest.mark.parametrize("change", [{"files": {}}, {"files": {MODEL: {"sha256": "0", "num_bytes": 1}}}])
def test_a_manifest_that_seals_nothing_is_refused(bundle: Path, change: dict[str, object]) -> None:
    """Otherwise an emptied list of files would turn every integrity check off."""
    manifest = json.loads((bundle / MANIFEST).read_text())
    (bundle / MANIFEST).write_text(json.dumps({**manifest, **change}))
    with pytest.raises(BundleError, match=r"has no sha256 for .*model\.onnx\.data"):
        open_bundle(bundle)


def test_a_manifest_that_describes_another_model_is_refused(bundle: Path) -> None:
    manifest = json.loads((bundle / MANIFEST).read_text())
    manifest["config"]["n_ctx"] = 5000
    (bundle / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=r"describes another model than model\.onnx holds"):
        open_bundle(bundle)


@pytest.mark.parametrize("content", ["[" * 200_000, '{"schema": ' + "9" * 5000 + "}"])
def test_a_manifest_made_to_break_a_parser_is_one_clear_error(bundle: Path, content: str) -> None:
    (bundle / MANIFEST).write_text(content)
    with pytest.raises(BundleError, match="cannot be read"):
        open_bundle(bundle)


ABSENT = Availability(available=False, reason="no such package", hint="install it")


def test_a_build_makes_the_graph_that_run_takes(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unasked, for it has no weights of its own; and it is proven layer by layer."""
    monkeypatch.setattr(EngineBackend, "can_build", lambda self: ABSENT)
    result = build(tmp_path / "out", cache_dir, None, targets=None)
    assert [step.name for step in result.steps] == ["onnx", "ort-cpu fp32", "validate"]
    assert set(result.manifest.files) == {"model.onnx", "model.onnx.data", "ort-cpu-fp32.onnx", "report.json"}
    of = {candidate.name: candidate.verdict for candidate in result.report.candidates}
    assert of["onnxruntime-cpu"] == of["ort-cpu-fp32"] == "pass"
    rows = [row.name for row in result.report.layers if row.candidate == "ort-cpu-fp32"]
    assert {"logits", "blocks.0.mlp.gelu", "blocks.1.attn.context", "present.1.value"} <= set(rows)
    with andrea_export.load(tmp_path / "out") as model:
        assert (model.provider, model.graph) == ("cpu", "ort-cpu-fp32.onnx")
        found = list(model.generate((5, 17, 42), max_new_tokens=20))
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    (tmp_path / "out/manifest.json").write_text(json.dumps({**manifest, "ort_cpu": []}))
    with andrea_export.load(tmp_path / "out") as model:  # as bundles of earlier versions are
        assert model.graph == "model.onnx"
        assert list(model.generate((5, 17, 42), max_new_tokens=20)) == found


def test_without_onnxruntime_that_graph_is_left_out_and_said_so(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EngineBackend, "can_build", lambda self: ABSENT)
    monkeypatch.setattr("andrea_export.targets.ort_cpu.target.provider_availability", lambda name: ABSENT)
    result = build(tmp_path / "out", cache_dir, None, targets=None)
    assert "target ort-cpu: no such package" in result.left_out
    assert [step.name for step in result.steps] == ["onnx", "validate"]
    asked = build(tmp_path / "asked", cache_dir, None, targets=["ort-cpu"])
    assert [step.name for step in asked.steps] == ["onnx", "ort-cpu fp32", "validate"]


def test_a_cheaper_precision_brings_the_one_it_drafts_for(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EngineBackend, "can_build", lambda self: ABSENT)
    result = build(tmp_path / "out", cache_dir, None, targets=None, precisions=["int4"])
    assert result.manifest.ort_cpu == ("fp32", "int4")
    with andrea_export.load(tmp_path / "out", draft="int4") as model:
        assert len(list(model.generate((5, 17, 42), max_new_tokens=20))) == 20
