"""The doctor: what is missing is named, with the command that brings it; what is there is shown with its version."""

from __future__ import annotations

import importlib.metadata
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from andrea_export.doctor import findings
from andrea_export.doctor.findings import DISTRIBUTION, Requirement, missing_extras_only, requirements
from andrea_export.doctor.steps import STEP_NAMES, StepStatus, examine


def step(name: str) -> StepStatus:
    return next(entry for entry in examine().steps if entry.name == name)


def test_every_step_is_answered() -> None:
    examination = examine()
    assert tuple(entry.name for entry in examination.steps) == STEP_NAMES
    for entry in examination.steps:
        assert entry.detail, entry.name
        assert entry.available or entry.hint, f"{entry.name} is missing and nothing says what brings it"


def test_this_environment_can_export_and_run_on_the_cpu() -> None:
    found = {entry.name: entry.available for entry in examine().steps}
    assert found["export"]
    assert found["validate"]
    assert found["run-cpu"]


def test_the_base_requirements_are_those_of_the_distribution() -> None:
    names = {requirement.name for requirement in requirements(None)}
    assert {"torch", "onnx", "onnx-ir", "typer", "pydantic"} <= names
    assert "onnxruntime" not in names
    assert {requirement.name for requirement in requirements("cpu")} == {"onnxruntime"}
    assert {requirement.name for requirement in requirements("plugin")} >= {"nvidia-cuda-nvcc", "cmake", "ninja"}


@pytest.mark.parametrize(
    ("installed", "specifier", "problem"),
    [
        ("2.13.0", ">=2.10", None),
        ("2.9.1", ">=2.10", "torch is 2.9.1, expected >=2.10"),
        ("2.10.0a0+git1", ">=2.10", None),
        ("13.0.88", "==13.0.*", None),
        ("13.1.0", "==13.0.*", "torch is 13.1.0, expected ==13.0.*"),
        ("1.7.1.116", "==1.7.1.116", None),
        ("1.7.1.117", "==1.7.1.116", "torch is 1.7.1.117, expected ==1.7.1.116"),
        ("0.1", "", None),
    ],
)
def test_versions_are_held_against_what_is_asked(
    monkeypatch: pytest.MonkeyPatch, installed: str, specifier: str, problem: str | None
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: installed)
    assert Requirement(name="torch", specifier=specifier).problem() == problem


def test_a_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    version = importlib.metadata.version

    def without_onnx(name: str) -> str:
        if name in ("onnx", "polygraphy"):
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", without_onnx)
    found = step("export")
    assert not found.available
    assert found.detail == "onnx is not installed; polygraphy is not installed"
    assert found.hint == f"pip install {DISTRIBUTION}"
    assert not step("build-tensorrt-rtx").available
    others = [entry for entry in examine().steps if "onnx is not installed" in entry.detail]
    assert [entry.name for entry in others] == ["export"]  # the list is said once
    assert "needs what export needs, above (here: g++ " in step("compile-plugin").detail


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    from andrea_export.core.errors import BackendUnavailable
    from andrea_export.operators import toolchain

    def absent() -> None:
        raise BackendUnavailable("no g++", hint="apt-get install g++")

    monkeypatch.setattr(toolchain, "find_gxx", absent)
    found = step("compile-plugin")
    assert not found.available
    assert "g++ is missing" in found.detail
    assert found.hint == "apt-get install g++"


def fake_nvidia_smi(folder: Path, body: str) -> Path:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ("echo 'NVIDIA L4, 580.95.05, 8.9'", "NVIDIA L4, 580.95.05, 8.9"),
        ("echo 'driver/library version mismatch' >&2; exit 18", "the driver finds one"),
        ("exit 0", "the driver finds one"),
    ],
)
def test_the_gpu_is_what_the_driver_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str, detail: str
) -> None:
    """nvidia-smi only names it; a Jetson may have the one without the other."""
    tool = fake_nvidia_smi(tmp_path, body)
    monkeypatch.setattr(shutil, "which", lambda name: str(tool))
    monkeypatch.setattr(findings, "why_no_gpu", lambda: "")
    assert findings.gpu().available
    assert findings.gpu().detail.startswith(detail)
    monkeypatch.setattr(findings, "why_no_gpu", lambda: "needs a GPU: the driver finds no GPU")
    assert (findings.gpu().available, findings.gpu().detail) == (False, "needs a GPU: the driver finds no GPU")


def test_an_nvidia_smi_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*arguments: object, **options: object) -> None:
        raise subprocess.TimeoutExpired("nvidia-smi", 20)

    monkeypatch.setattr(findings, "why_no_gpu", lambda: "")
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(subprocess, "run", hang)
    assert findings.gpu().detail.startswith("the driver finds one")


def test_nothing_is_advised_that_would_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "why_no_gpu", lambda: "needs a GPU: no driver")
    for name in ("build-tensorrt", "run-cuda", "run-tensorrt", "run-tensorrt-rtx", "run-engines-tensorrt"):
        found = step(name)
        assert not found.available
        assert "needs a GPU" in found.detail
        assert found.hint is not None
        assert not found.hint.startswith("pip install")
    cuda = step("run-cuda").hint
    assert cuda is not None
    if "andrea-export[gpu]" in cuda:
        assert "pip uninstall -y onnxruntime; pip install 'andrea-export[gpu]'" in cuda
    rtx = step("run-tensorrt-rtx").hint
    assert rtx is not None
    assert "[cpu]" not in rtx  # installed


def test_extras_that_are_there_are_not_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"gpu": True, "cpu": False, "tensorrt": False}
    absent = Requirement(name="no-such-package", specifier="")
    monkeypatch.setattr(findings, "requirements", lambda extra: (absent,) if missing[str(extra)] else ())
    assert missing_extras_only("pip install 'andrea-export[gpu,tensorrt]'") == "pip install 'andrea-export[gpu]'"
    assert missing_extras_only("pip install 'andrea-export[cpu]' other") == "pip install other"
    assert missing_extras_only("pip install 'andrea-export[cpu]'") == "pip install 'andrea-export[cpu]'"


def test_a_gpu_provider_without_a_gpu_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime-gpu lists its CUDA provider on a machine without a GPU, and then runs on the CPU."""
    from andrea_export.sessions import onnxruntime as backend
    from andrea_export.sessions.base import Availability

    monkeypatch.setattr(backend, "provider_availability", lambda name: Availability(available=True))
    monkeypatch.setattr(findings, "why_no_gpu", lambda: "needs a GPU: no driver")
    found = {entry.name: entry.available for entry in examine().steps}
    assert not found["run-cuda"]
    assert found["run-cpu"]


def test_engines_need_the_plugins_compiler_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from andrea_export.core.errors import BackendUnavailable
    from andrea_export.operators import toolchain

    def absent() -> None:
        raise BackendUnavailable("no cmake", hint="pip install cmake")

    monkeypatch.setattr(toolchain, "find_cmake", absent)
    found = step("build-tensorrt-rtx")
    assert (found.available, found.hint) == (False, "pip install cmake")
    assert found.detail.startswith("cmake is missing (here: g++ ")
