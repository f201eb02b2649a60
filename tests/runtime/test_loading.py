"""``load``: which graph it opens, on files that are as they were sealed, and what it says where it opens none."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import andrea_export
from andrea_export.bundle.layout import PLUGIN
from andrea_export.bundle.manifest import file_entry, open_bundle, seal
from andrea_export.core.errors import (
    BackendUnavailable,
    BundleError,
    PluginError,
    RunError,
    UsageError,
    ValidationError,
)
from andrea_export.core.hashing import sha256_of
from andrea_export.operators.cpu_path import cpu_path
from andrea_export.runtime.open import open_growing, open_shared
from andrea_export.targets.ort_cpu.files import LIBRARY
from support.generating import PRECISIONS, PROMPT, opened


def test_a_precision_that_was_not_built(built_bundle: Path) -> None:
    with pytest.raises(BundleError, match=r"has no int8 \(it has fp32\)") as caught:
        opened(built_bundle, "int8")
    assert caught.value.hint == "build it with --target ort-cpu --precision int8"


def test_precisions_and_threads_there_are_not(ort_bundle: Path) -> None:
    with pytest.raises(UsageError, match="unknown precision 'fp16'"):
        opened(ort_bundle, "fp16")
    with pytest.raises(UsageError, match="unknown provider 'tpu'") as error:
        andrea_export.load(ort_bundle, provider="tpu")
    assert error.value.hint == "providers: auto, cpu, cuda, tensorrt, tensorrt-rtx"
    for threads in (0, -1, 100_000):
        with pytest.raises(UsageError, match=rf"{threads} threads asked for, expected 1 to \d+"):
            andrea_export.load(ort_bundle, num_threads=threads)
    for odd in (1.5, "2", True):
        with pytest.raises(UsageError, match=rf"num_threads is {odd!r}, expected a whole number"):
            andrea_export.load(ort_bundle, num_threads=odd)
    with pytest.raises(UsageError, match="runs fp32 only"):
        andrea_export.load(ort_bundle, provider="cuda", precision="int8")


@pytest.mark.parametrize(
    ("file", "precision"),
    [
        ("ort-cpu-int8.onnx.data", "int8"),
        ("ort-cpu-int8.onnx", "int8"),
        ("model.onnx.data", "fp32"),
    ],
)
def test_a_damaged_or_foreign_file_is_named(ort_bundle: Path, tmp_path: Path, file: str, precision: str) -> None:
    bundle = Path(shutil.copytree(ort_bundle, tmp_path / "bundle"))
    content = bytearray((bundle / file).read_bytes())
    content[len(content) // 2] ^= 1
    (bundle / file).write_bytes(content)
    with pytest.raises(BundleError, match=f"{file} has sha256"):
        opened(bundle, precision)
    (bundle / file).write_bytes(content[:100])
    with pytest.raises(BundleError, match=f"{file} has 100 bytes"):
        opened(bundle, precision)
    with pytest.raises(RunError, match="cannot load"):
        andrea_export.load(bundle, provider="cpu", precision=precision, verify=False)
    (bundle / file).unlink()
    with pytest.raises(BundleError, match=f"{file} is missing"):
        opened(bundle, precision)


@pytest.mark.parametrize("content", [b"", b"not a library", None], ids=["empty", "foreign", "missing"])
def test_operators_that_cannot_be_loaded_are_said_and_the_functions_run(
    ort_bundle: Path, tmp_path: Path, content: bytes | None
) -> None:
    """As on a machine of another kind, or in a bundle from one without a compiler."""
    with opened(ort_bundle, "int8") as whole:
        assert whole.passed_over == () and cpu_path(ort_bundle / LIBRARY) in whole.decoder.name
        wanted = whole.prefill([PROMPT]).copy()
    bundle = Path(shutil.copytree(ort_bundle, tmp_path / "bundle"))
    manifest = open_bundle(bundle).manifest
    files = dict(manifest.files)
    if content is None:
        (bundle / LIBRARY).unlink()
        del files[LIBRARY]
        manifest = replace(manifest, cpu_library=None)
    else:
        (bundle / LIBRARY).write_bytes(content)
        files[LIBRARY] = file_entry(bundle / LIBRARY)
    seal(bundle, replace(manifest, files=files))
    with opened(bundle, "int8") as model:
        (reason,) = model.passed_over
        assert ("cannot be loaded" if content is not None else "built without") in reason
        assert "ort-cpu-int8 computes by its functions" in reason
        found = model.prefill([PROMPT])
    # Activations that fall on the other side of a step of 1/8191 of a row's largest.
    assert np.abs(found - wanted).max() < 1e-3 * np.abs(wanted).max()


def test_a_library_that_is_not_the_sealed_one_is_not_loaded(ort_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(ort_bundle, tmp_path / "bundle"))
    library = bundle / LIBRARY
    library.write_bytes(library.read_bytes()[:-1] + b"x")
    with pytest.raises(BundleError, match=r"libandrea_cpu\.so has sha256"):
        opened(bundle, "int8")


def test_a_damaged_graph_is_never_parsed_and_damaged_weights_leave_no_session(
    ort_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are hashed while the session opens, so it may be open when they are found to be others."""
    bundle = Path(shutil.copytree(ort_bundle, tmp_path / "bundle"))
    weights = bundle / "ort-cpu-int8.onnx.data"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x55")
    decoders: list[Any] = []

    def remembered(*arguments: Any, **options: Any) -> Any:
        decoders.append(open_shared(*arguments, **options))
        return decoders[-1]

    monkeypatch.setattr("andrea_export.runtime.open.open_shared", remembered)
    with pytest.raises(BundleError, match=r"ort-cpu-int8\.onnx\.data has sha256"):
        opened(bundle, "int8")
    assert len(decoders) == 1 and decoders[0].closed

    def unreadable(path: Path) -> str:
        if path.suffix == ".data":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return sha256_of(path)

    def refused(*_: Any, **__: Any) -> Any:
        raise RunError("onnxruntime cannot load it")

    with monkeypatch.context() as patched:
        patched.setattr("andrea_export.bundle.contents.sha256_of", unreadable)
        with pytest.raises(BundleError, match=r"\.data cannot be read: Input/output error"):
            opened(bundle, "int8")
    assert len(decoders) == 2 and decoders[1].closed
    with monkeypatch.context() as patched:
        patched.setattr("andrea_export.runtime.open.open_shared", refused)
        with pytest.raises(BundleError, match=r"ort-cpu-int8\.onnx\.data has sha256"):  # which is why
            opened(bundle, "int8")
    graph = bundle / "ort-cpu-int8.onnx"
    graph.write_bytes(graph.read_bytes()[:-1] + b"\x55")
    with pytest.raises(BundleError, match=r"ort-cpu-int8\.onnx has sha256"):
        opened(bundle, "int8")
    assert len(decoders) == 2


@pytest.mark.parametrize("file", ["manifest.json", "ort-cpu-int8.onnx", "ort-cpu-int8.onnx.data"])
@pytest.mark.parametrize("verify", [True, False])
def test_a_file_that_is_replaced_while_it_is_loaded(
    ort_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, verify: bool
) -> None:
    """What runs must be what was checked, and all of one bundle."""
    bundle = Path(shutil.copytree(ort_bundle, tmp_path / "bundle"))
    decoders: list[Any] = []

    def replaced(*arguments: Any, **options: Any) -> Any:
        decoders.append(open_shared(*arguments, **options))
        shutil.copy(bundle / file, tmp_path / "new")
        (tmp_path / "new").replace(bundle / file)
        return decoders[-1]

    monkeypatch.setattr("andrea_export.runtime.open.open_shared", replaced)
    with pytest.raises(BundleError, match="was changed while it was loaded"):
        andrea_export.load(bundle, provider="cpu", precision="int8", verify=verify)
    assert decoders[0].closed


def test_where_opening_takes_minutes_everything_is_checked_before(
    built_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Path(shutil.copytree(built_bundle, tmp_path / "bundle"))
    weights = bundle / "model.onnx.data"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x55")
    monkeypatch.setattr("andrea_export.runtime.open.open_growing", None)
    with pytest.raises(BundleError, match=r"model\.onnx\.data has sha256"):
        opened(bundle)


def test_a_bundle_that_failed_its_validation_is_not_run(ort_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(ort_bundle, tmp_path / "bundle"))
    seal(bundle, replace(open_bundle(bundle).manifest, verdict="fail"))
    with pytest.raises(ValidationError, match="failed its validation"):
        opened(bundle)


def test_a_moved_bundle_works_from_any_folder(
    ort_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ort_bundle, tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    for precision in PRECISIONS:
        with opened(Path("moved"), precision) as model:
            assert len(list(model.generate(PROMPT, max_new_tokens=2))) == 2


def test_auto_takes_the_cpu_where_there_is_nothing_else(ort_bundle: Path) -> None:
    with andrea_export.load(ort_bundle) as model:
        assert model.provider == "cpu" and model.name == "onnxruntime-cpu (ort-cpu-fp32)"


def test_auto_says_what_it_passed_over(ort_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from andrea_export.runtime import loading as module
    from andrea_export.sessions.base import Availability

    monkeypatch.setattr(module, "provider_availability", lambda name: Availability(available=True))
    with andrea_export.load(ort_bundle) as model:
        assert model.provider == "cpu"
        (reason,) = model.passed_over
        assert reason.startswith("provider cuda: this onnxruntime")


@pytest.mark.parametrize("provider", ["cuda", "tensorrt", "tensorrt-rtx"])
def test_a_provider_that_is_not_here_is_an_error(ort_bundle: Path, provider: str) -> None:
    from andrea_export.sessions.onnxruntime import provider_availability

    if provider_availability(provider).available:
        pytest.skip(f"{provider} is installed here")
    with pytest.raises(BackendUnavailable, match=f"provider {provider}: ") as caught:
        andrea_export.load(ort_bundle, provider=provider)
    assert caught.value.hint is not None and "pip install" in caught.value.hint


def test_the_tensorrt_provider_wants_its_plugin(ort_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from andrea_export.sessions.base import Availability
    from andrea_export.sessions.onnxruntime import opening as module

    monkeypatch.setattr(module, "provider_availability", lambda name: Availability(available=True))
    with pytest.raises(PluginError, match=r"there is no .*libandrea_plugins\.so"):
        open_growing(ort_bundle, "tensorrt", open_bundle(ort_bundle).config, 1, True)


def test_a_plugin_that_is_not_the_sealed_one_is_not_loaded(ort_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(ort_bundle, tmp_path / "bundle"))
    library = bundle / PLUGIN
    library.write_bytes(b"as it was sealed")
    with pytest.raises(BundleError, match=r"libandrea_plugins\.so is not in the manifest"):
        andrea_export.load(bundle, provider="tensorrt")
    manifest = open_bundle(bundle).manifest
    seal(bundle, replace(manifest, files={**manifest.files, PLUGIN: file_entry(library)}))
    library.write_bytes(b"as it is now....")
    with pytest.raises(BundleError, match=r"libandrea_plugins\.so has sha256"):
        andrea_export.load(bundle, provider="tensorrt")
