"""Every bad input on the command line: one line, a way out, the documented exit code, nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from andrea_export.operators.cpu_path import expected_path
from tests.conftest import Andrea, Outcome, add_engine_entry

Damage = Callable[[Path], None]
Tensors = dict[str, "np.ndarray"]


def refused(outcome: Outcome, *, code: int = 2) -> str:
    """The error line of an outcome that must be a refusal: nothing on stdout, a line, at most one hint."""
    assert outcome.code == code, outcome.stderr
    assert outcome.stdout == ""
    assert "Traceback" not in outcome.stderr
    assert "\n" not in outcome.error
    return outcome.error


def build_from(andrea: Andrea, checkpoint: Path, *options: str) -> Outcome:
    """A build of the ONNX target in the checkpoint's folder, which must leave nothing beside the checkpoint."""
    folder = checkpoint.parent
    before = sorted(folder.iterdir())
    outcome = andrea(
        "build",
        folder / "out",
        "--checkpoint",
        checkpoint,
        "--target",
        "onnx",
        "--cache-dir",
        folder / "cache",
        *options,
    )
    if outcome.code != 0:
        assert sorted(folder.iterdir()) == before
    return outcome


# --- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the tiny checkpoint, to be damaged."""
    path = tmp_path / "tiny.safetensors"
    path.write_bytes(checkpoint.read_bytes())
    return path


def test_missing_checkpoint(andrea: Andrea, tmp_path: Path) -> None:
    outcome = build_from(andrea, tmp_path / "absent.safetensors")
    assert refused(outcome) == f"checkpoint {tmp_path / 'absent.safetensors'}: no such file"


def test_a_folder_for_a_checkpoint(andrea: Andrea, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert refused(build_from(andrea, tmp_path / "folder")).endswith("is a folder")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "is empty"),
        (b"\x05", "is not a whole safetensors file (1 bytes)"),
        (b"PK\x03\x04 a pickled torch checkpoint is a zip file" * 20, "is not a whole file of torch.save"),
        (struct.pack("<Q", 1 << 62) + b"{}", "is not a whole safetensors file"),
    ],
)
def test_a_file_that_is_no_checkpoint(andrea: Andrea, tmp_path: Path, body: bytes, text: str) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(body)
    outcome = build_from(andrea, path)
    assert text in refused(outcome)


@pytest.mark.parametrize("keep", [0.999, 0.5, 0.001])
def test_truncated_checkpoint(andrea: Andrea, copy: Path, keep: float) -> None:
    body = copy.read_bytes()
    copy.write_bytes(body[: int(len(body) * keep)])
    outcome = build_from(andrea, copy)
    assert "is not a whole safetensors file" in refused(outcome)
    assert outcome.hint is not None


def test_the_published_layout_is_recognised(andrea: Andrea, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.bin"
    path.write_bytes(struct.pack("<ii", 1000, 7) + np.zeros(21, "<f4").tobytes())
    outcome = build_from(andrea, path)
    assert "(published training checkpoint, step 1000, 7 parameters) does not state its shape" in refused(outcome)
    assert outcome.hint == "name it: --config FILE, or --preset NAME"


def rewrite(path: Path, change: Callable[[Tensors], None]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def misshape(tensors: Tensors) -> None:
    tensors["blocks.0.mlp.fc.weight"] = np.ascontiguousarray(tensors["blocks.0.mlp.fc.weight"].T)


def drop(tensors: Tensors) -> None:
    del tensors["blocks.1.ln_1.bias"]
    del tensors["ln_f.weight"]


def add(tensors: Tensors) -> None:
    tensors["head.weight"] = np.zeros((321, 64), np.float32)


def everything_wrong(tensors: Tensors) -> None:
    misshape(tensors)
    drop(tensors)
    add(tensors)


def whole_numbers(tensors: Tensors) -> None:
    tensors["ln_f.bias"] = np.zeros(64, np.int64)


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        (misshape, ["1 problem:", "blocks.0.mlp.fc.weight has shape [256, 64], expected [64, 256]"]),
        (drop, ["2 problems:", "missing blocks.1.ln_1.bias [64]", "missing ln_f.weight [64]"]),
        (add, ["1 problem:", "unexpected head.weight"]),
        (everything_wrong, ["4 problems:", "missing ln_f.weight", "unexpected head.weight", "[256, 64]"]),
        (whole_numbers, ["ln_f.bias has type I64, expected F32, F16, BF16 or F64"]),
    ],
)
def test_a_checkpoint_that_does_not_fit(
    andrea: Andrea, copy: Path, change: Callable[[Tensors], None], texts: list[str]
) -> None:
    rewrite(copy, change)
    outcome = build_from(andrea, copy, "--preset", "andrea-tiny")
    error = refused(outcome)
    assert outcome.hint is not None
    for text in texts:
        assert text in error


def test_a_checkpoint_of_another_preset_names_its_own(andrea: Andrea, copy: Path) -> None:
    rewrite(copy, lambda tensors: None)  # saved again without its configuration
    outcome = build_from(andrea, copy, "--preset", "andrea-12m")
    assert "problems" in refused(outcome)
    assert outcome.hint == "its token_embed.weight is that of andrea-tiny: use --preset andrea-tiny"


def test_a_checkpoint_that_states_another_shape(andrea: Andrea, copy: Path) -> None:
    outcome = build_from(andrea, copy, "--preset", "andrea-12m")
    assert "says it is another model: d_model 64 (preset andrea-12m: 384)" in refused(outcome)
    assert outcome.hint == "leave out --preset"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_named(andrea: Andrea, copy: Path, value: float) -> None:
    def spoil(tensors: Tensors) -> None:
        tensors["blocks.1.attn.qkv.weight"][3, 4:6] = value
        tensors["ln_f.bias"][0] = value

    rewrite(copy, spoil)
    outcome = build_from(andrea, copy, "--preset", "andrea-tiny")
    error = refused(outcome)
    assert "has NaN or Inf, 2 problems" in error
    assert "blocks.1.attn.qkv.weight (2 of 12,288 values)" in error
    assert "ln_f.bias (1 of 64 values)" in error


# --- options and recipes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--preset", "andrea-7b"), "unknown preset 'andrea-7b'"),
        (("--target", "coreml"), "'coreml' is not one of 'onnx', 'ort-cpu', 'tensorrt', 'tensorrt-rtx'"),
        (("--precision", "fp8"), "'fp8' is not one of 'fp32', 'fp16', 'bf16'"),
        (("--seed", "-1"), "--seed is -1, expected 0 to 2^63 - 1"),
        (("--target", "onnx", "--target", "onnx"), "targets names one value twice: onnx"),
        (("--recipe", "absent.toml"), "recipe absent.toml: No such file or directory"),
    ],
)
def test_wrong_options(
    andrea: Andrea, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = andrea("build", "out", *options)
    assert text in refused(outcome)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("body", "texts"),
    [
        ("colour = 'red'\n", ["unknown key 'colour'"]),
        ("preset = 'andrea-tiny'\ncolour = 1\nsize = 2\n", ["unknown key 'colour'", "unknown key 'size'"]),
        ("precisions = ['fp64']\n", ["precisions.0", "'fp64'"]),
        ("[profile.batch]\nmin = 4\nopt = 1\nmax = 8\n", ["min 4, opt 1, max 8 are not in rising order"]),
        ("[profile.batch]\nmin = 0\nopt = 1\nmax = 8\n", ["batch.min is 0, expected at least 1"]),
        ("preset = \n", ["is not TOML"]),
        ("preset = 'andrea-7b'\n", ["unknown preset 'andrea-7b'"]),
    ],
)
def test_wrong_recipes(andrea: Andrea, tmp_path: Path, body: str, texts: list[str]) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(body)
    outcome = andrea("build", tmp_path / "out", "--recipe", recipe)
    error = refused(outcome)
    for text in texts:
        assert text in error
    assert list(tmp_path.iterdir()) == [recipe]


def test_a_target_this_machine_cannot_build(andrea: Andrea, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "tensorrt" else find(name, *more)
    )
    outcome = andrea("build", tmp_path / "out", "--preset", "andrea-tiny", "--target", "tensorrt")
    assert refused(outcome, code=3).startswith("target tensorrt: the package tensorrt is not installed")
    assert outcome.hint is not None
    assert list(tmp_path.iterdir()) == []


def test_without_a_compiler(andrea: Andrea, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from andrea_export.core.errors import BackendUnavailable
    from andrea_export.operators import toolchain
    from andrea_export.sessions.base import Availability
    from andrea_export.targets.tensorrt.flavours import engine_backend

    def absent() -> None:
        raise BackendUnavailable("no g++", hint="apt-get install g++")

    monkeypatch.setattr(type(engine_backend("tensorrt-rtx")), "can_build", lambda self: Availability(available=True))
    monkeypatch.setattr(toolchain, "find_gxx", absent)
    outcome = andrea("build", tmp_path / "out", "--preset", "andrea-tiny", "--target", "tensorrt-rtx")
    assert "the plugin cannot be compiled without g++" in refused(outcome, code=3)
    assert outcome.hint == "apt-get install g++"
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_cannot_run_here(andrea: Andrea, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before torch has run, and before the reference is read."""
    from andrea_export.targets.tensorrt import backend as tensorrt
    from andrea_export.validation import bundle as validation

    def never(*given: object) -> None:
        raise AssertionError("the reference was loaded")

    monkeypatch.setattr(tensorrt, "why_no_gpu", lambda: "needs a GPU: no driver")
    monkeypatch.setattr(validation, "reference_model", never)
    add_engine_entry(bundle, 2)
    outcome = andrea("trace", bundle, "--backend", "torch", "--backend", "tensorrt-rtx-fp16")
    error = refused(outcome, code=3)
    assert error.startswith("backend tensorrt-rtx-fp16: ")
    assert "needs a GPU: no driver" in error or "is not installed" in error


def test_an_engine_that_the_bundle_lacks(andrea: Andrea, built_bundle: Path) -> None:
    outcome = andrea("trace", built_bundle, "--backend", "tensorrt-rtx-fp16")
    assert refused(outcome) == "unknown backend 'tensorrt-rtx-fp16'"  # this bundle has no engine
    assert outcome.hint is not None
    assert "torch, onnxruntime-cpu" in outcome.hint


# --- outputs ----------------------------------------------------------------------------------------------------------


def test_output_is_a_file(andrea: Andrea, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.write_text("mine")
    outcome = andrea("build", output, "--preset", "andrea-tiny", "--target", "onnx")
    assert refused(outcome) == f"output {output} is a file, expected a folder or nothing"
    assert output.read_text() == "mine"


def test_output_is_somebody_elses_folder(andrea: Andrea, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    outcome = andrea("build", tmp_path, "--preset", "andrea-tiny", "--target", "onnx", "--force")
    assert "is a folder with other things in it" in refused(outcome)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_output_below_a_file(andrea: Andrea, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is a file" in refused(andrea("build", tmp_path / "file" / "out", "--preset", "andrea-tiny"))


def test_output_in_an_unwritable_folder(andrea: Andrea, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    if os.geteuid() == 0:  # root may write anywhere, except where nobody can
        locked = Path("/proc/sys")
    outcome = andrea("build", locked / "out", "--preset", "andrea-tiny", "--target", "onnx")
    error = refused(outcome)
    assert str(locked) in error
    assert "writ" in error  # not writable, or cannot be written


# --- run --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "number", "text"),
    [
        ("", "4", "--tokens is empty"),
        (" ", "4", "--tokens is empty"),
        ("5,x", "4", "--tokens: 'x' is not a token id"),
        ("5,-1", "4", "--tokens: '-1' is not a token id"),
        ("5,,7", "4", "--tokens: '' is not a token id"),
        ("5.0", "4", "--tokens: '5.0' is not a token id"),
        ("٣", "4", "is not a token id"),
        ("5,321,400", "4", "token id 321, 400 is outside the vocabulary, expected 0 to 320"),
        ("5", "0", "0 new tokens asked for, expected at least 1"),
        ("5", "-3", "-3 new tokens asked for, expected at least 1"),
        ("5", "1024", "1 prompt + 1024 new tokens are 1025 positions, and the model has 1024"),
        (",".join(["1"] * 1025), "1", "1025 prompt + 1 new tokens are 1026 positions"),
    ],
)
def test_tokens_that_cannot_be_run(andrea: Andrea, built_bundle: Path, tokens: str, number: str, text: str) -> None:
    outcome = andrea("run", built_bundle, "--tokens", tokens, "--max-new-tokens", number)
    assert text in refused(outcome)
    assert outcome.hint is not None


@pytest.mark.parametrize("provider", ["cuda", "tensorrt", "tensorrt-rtx"])
def test_a_provider_that_is_not_here(andrea: Andrea, built_bundle: Path, provider: str) -> None:
    from andrea_export.sessions.onnxruntime import provider_availability

    if provider_availability(provider).available:
        pytest.skip(f"this onnxruntime has the {provider} provider")
    outcome = andrea("run", built_bundle, "--tokens", "5", "--provider", provider)
    assert refused(outcome, code=3).startswith(f"provider {provider}: ")
    assert outcome.hint is not None


def test_without_onnxruntime(andrea: Andrea, built_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "onnxruntime" else find(name, *more)
    )
    outcome = andrea("run", built_bundle, "--tokens", "5")
    assert refused(outcome, code=3) == "provider cpu: onnxruntime is not installed"
    assert outcome.hint == "pip install 'andrea-export[cpu]'"


# --- bundles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("run", "--tokens", "5"), ("validate",), ("trace",)])
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda path: None, "no such folder"),
        (lambda path: path.write_text("x"), "is a file, expected a folder"),
        (lambda path: path.mkdir(), "is not a bundle: it has no manifest.json"),
    ],
)
def test_what_is_no_bundle(
    andrea: Andrea, tmp_path: Path, command: tuple[str, ...], make: Callable[[Path], object], text: str
) -> None:
    path = tmp_path / "bundle"
    make(path)
    assert text in refused(andrea(command[0], path, *command[1:]))


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data", "report.json"])
def test_run_refuses_a_changed_file_by_name(andrea: Andrea, bundle: Path, name: str) -> None:
    body = bytearray((bundle / name).read_bytes())
    body[len(body) // 2] ^= 1
    (bundle / name).write_bytes(body)
    assert name in refused(andrea("run", bundle, "--tokens", "5"))


def test_run_refuses_a_missing_file_by_name(andrea: Andrea, bundle: Path) -> None:
    (bundle / "model.onnx.data").unlink()
    assert "model.onnx.data is missing" in refused(andrea("run", bundle, "--tokens", "5"))


def test_run_refuses_a_bundle_that_failed_its_validation(andrea: Andrea, bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    (bundle / "manifest.json").write_text(json.dumps({**manifest, "verdict": "fail"}))
    assert "failed its validation" in refused(andrea("run", bundle, "--tokens", "5"), code=1)
    (bundle / "manifest.json").write_text(json.dumps({**manifest, "verdict": "not-measured"}))
    assert "was not measured when it was built" in refused(andrea("run", bundle, "--tokens", "5"), code=1)


def test_a_newer_manifest_is_not_guessed_at(andrea: Andrea, bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    (bundle / "manifest.json").write_text(json.dumps({**manifest, "schema": "andrea-export/manifest/99"}))
    assert "andrea-export/manifest/99" in refused(andrea("validate", bundle))


def test_validate_refuses_another_checkpoint(andrea: Andrea, built_bundle: Path, copy: Path) -> None:
    rewrite(copy, lambda tensors: tensors["ln_f.bias"].__iadd__(1.0))
    outcome = andrea("validate", built_bundle, "--checkpoint", copy)
    assert "is not the checkpoint" in refused(outcome)


# --- inspect and trace ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (None, "no such file or folder"),
        (b"", "is empty"),
        (b"hello, this is text\n" * 10, "is not a checkpoint, ONNX file, engine or bundle"),
        (bytes(range(256)) * 8, "is not a checkpoint, ONNX file, engine or bundle"),
        (b"\x08\x07", "is not a checkpoint, ONNX file, engine or bundle"),
        (b"vtrt", "begins like a TensorRT-RTX engine but is not one"),
        (b"\x7fELF" + bytes(200), "none of a TensorRT plugin library's entry points"),
        (b'{"schema": "andrea-export/report/1", "verdict": "pass"}', "is the report of a validation, verdict pass"),
        (b' {"schema": "andrea-export/manifest/2"}', "is the manifest of a bundle"),
        (b'{"model_type": "gpt2"}', "begins like JSON"),
        (b"{" * 100_000, "begins like JSON"),
    ],
)
def test_inspect_of_nothing_it_knows(andrea: Andrea, tmp_path: Path, body: bytes | None, text: str) -> None:
    for name in ("file", "report.json", "manifest.json", "x.pbtxt", "x.onnxtxt", "x.textproto"):
        path = tmp_path / name
        if body is not None:
            path.write_bytes(body)
        outcome = andrea("inspect", path)
        assert text in refused(outcome), name
        assert outcome.hint is not None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--block", "2"), "block 2 does not exist, expected 0 to 1"),
        (("--block", "-1"), "block -1 does not exist"),
        (("--position", "3"), "position 3 does not exist, expected 0 to 2"),
        (("--tokens", "5", "--position", "9"), "position 9 does not exist, expected 0, the only one"),
        (("--tokens", "400"), "token id 400 is outside the vocabulary, expected 0 to 320"),
        (("--tokens", ",".join(["1"] * 1025)), "1025 tokens are more than the model's 1024 positions"),
        (("--backend", "coreml"), "unknown backend 'coreml'"),
        (("--backend", "onnxruntime-coreml"), "unknown provider 'coreml'"),
        (("--checkpoint", "absent"), "checkpoint absent: no such file"),
        (("--block", "9", "--position", "9"), "position 9 does not exist, expected 0 to 2; block 9"),
    ],
)
def test_what_cannot_be_traced(andrea: Andrea, options: tuple[str, ...], text: str) -> None:
    outcome = andrea("trace", "--preset", "andrea-tiny", *options)
    assert text in refused(outcome)


def test_a_bundle_has_a_preset_already(andrea: Andrea, built_bundle: Path) -> None:
    assert "a bundle already is one" in refused(andrea("trace", built_bundle, "--preset", "andrea-tiny"))


def test_doctor_of_an_unknown_step(andrea: Andrea) -> None:
    outcome = andrea("doctor", "--require", "levitate")
    assert refused(outcome) == "--require: unknown step levitate"
    assert outcome.hint is not None
    assert "export" in outcome.hint


# --- a full disk ------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    """The file-size limit stands in for the full disk: the same system call fails, and no mount is needed."""
    program = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); "
        "from andrea_export.cli import main; main()"
    )
    arguments = ["build", "out", "--preset", "andrea-tiny", "--target", "onnx", "--cache-dir", "cache"]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 3, done.stderr
    assert len(errors) == 1, done.stderr
    assert "a file was not written whole" in errors[0]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out*"))


def test_a_damaged_bundle_is_not_measured(andrea: Andrea, ort_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(ort_bundle, tmp_path / "bundle"))
    weights = bytearray((bundle / "model.onnx.data").read_bytes())
    weights[len(weights) // 2] ^= 1
    (bundle / "model.onnx.data").write_bytes(weights)
    assert "model.onnx.data has sha256" in refused(andrea("bench", bundle, "--rounds", 1))


@pytest.mark.parametrize("named", ["bundle#ort-cpu-int8", "bundle#ort-cpu-int4", "bundle/ort-cpu-fp32.onnx"])
def test_diff_says_what_compares_the_graphs_for_the_cpu(andrea: Andrea, ort_bundle: Path, named: str) -> None:
    outcome = andrea("diff", ort_bundle, str(ort_bundle.parent / named))
    assert "is a graph for onnxruntime's CPU kernels, which diff does not run" in refused(outcome)
    assert "andrea-export validate" in outcome.stderr


def test_diff_knows_the_graphs_for_the_cpu_by_their_inputs(andrea: Andrea, ort_bundle: Path, tmp_path: Path) -> None:
    renamed = Path(shutil.copy(ort_bundle / "ort-cpu-fp32.onnx", tmp_path / "mine.onnx"))
    assert "is a graph for onnxruntime's CPU kernels" in refused(andrea("diff", ort_bundle, renamed))
    for name in ("model.onnx", "model.onnx.data"):
        shutil.copy(ort_bundle / name, tmp_path)
    canonical = (tmp_path / "model.onnx").rename(tmp_path / "ort-cpu-x.onnx")
    assert andrea("diff", ort_bundle, canonical).code == 0


def test_inspect_of_a_manifest_about_another_model_still_says_so(
    andrea: Andrea, ort_bundle: Path, tmp_path: Path
) -> None:
    bundle = Path(shutil.copytree(ort_bundle, tmp_path / "bundle"))
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["config"]["n_layer"] = 1
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    notes = json.loads(andrea("inspect", bundle, "--json").stdout)["notes"]
    assert notes == ["NOT as it was built: manifest.json describes another model than model.onnx holds"]


def test_inspect_says_what_the_graphs_for_the_cpu_are_made_of(andrea: Andrea, ort_bundle: Path) -> None:
    facts = json.loads(andrea("inspect", ort_bundle, "--json").stdout)["made_by"]
    assert facts["ort-cpu-int8.onnx"] == "linear layers: 8 in int8"
    assert facts["ort-cpu-int4.onnx"] == "linear layers: 4 in int8, 4 in int4"
    assert facts["plugins/libandrea_cpu.so"].endswith(f"this processor takes the path {expected_path()}")


def test_a_profile_beyond_the_context_is_refused_before_anything_is_built(andrea: Andrea, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'preset = "andrea-tiny"\ntargets = ["tensorrt-rtx"]\n[profile.sequence]\nmin = 1\nopt = 128\nmax = 5000\n'
    )
    outcome = andrea("build", tmp_path / "out", "--recipe", recipe)
    assert "the profile does not fit a context of 1024 tokens: sequence.max is 5000" in refused(outcome)
    assert "onnx" not in outcome.stderr and not (tmp_path / "out").exists()
