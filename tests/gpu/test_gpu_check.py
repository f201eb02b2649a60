"""The GPU check: rehearsed here without a GPU; on a GPU, its parts are tests of their own."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support import gpu_archive

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
ARCHIVE = REPOSITORY / "tests" / "support" / "gpu_archive.py"


def without_gpu_reason() -> str:
    """Why the GPU tests are skipped; empty where a GPU is."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    return "" if torch.cuda.is_available() else "torch sees no CUDA GPU on this machine"


needs_gpu = pytest.mark.skipif(bool(without_gpu_reason()), reason=without_gpu_reason() or "a GPU is here")


def check(out: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    """The check's exit code, its JSON and its Markdown."""
    command = [str(REPOSITORY / "scripts" / "gpu_check.sh"), str(out), *options]
    finished = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(out),
            "PYTHON": sys.executable,
            "ANDREA_GPU_PARTS": str(out / "none"),
        },
        timeout=600,
        check=False,
    )
    assert (out / "gpu_check.json").is_file(), finished.stderr
    return finished.returncode, json.loads((out / "gpu_check.json").read_text()), (out / "gpu_check.md").read_text()


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any], str]:
    return check(tmp_path_factory.mktemp("gpu-rehearsal"), "--rehearse")


def test_the_rehearsal_runs_what_a_cpu_can(rehearsal: tuple[int, dict[str, Any], str]) -> None:
    code, report, page = rehearsal
    assert code == 0
    assert report["rehearsal"]
    assert "nothing was timed" in page
    for name in ("build", "accuracy", "model"):
        assert report["parts"][name]["status"] == "passed", report["parts"][name]
    differing = [row["differs from the host's model at"] for row in report["parts"]["accuracy"]["rows"] if len(row) > 4]
    assert differing == [0, 0]
    assert {row["first out of budget"] for row in report["parts"]["model"]["rows"]} == {"none"}


def test_the_rehearsal_shows_what_is_not_available_and_why(rehearsal: tuple[int, dict[str, Any], str]) -> None:
    _, report, page = rehearsal
    for name in ("timing", "variants", "sanitizer", "engines", "layers"):
        part = report["parts"][name]
        assert part["status"] == "not available"
        assert part["reason"]
        assert part["reason"] in page


@pytest.mark.skipif(importlib.util.find_spec("tensorrt_rtx") is None, reason="tensorrt_rtx is not installed")
def test_the_rehearsal_builds_engines_with_debug_tensors(rehearsal: tuple[int, dict[str, Any], str]) -> None:
    _, report, page = rehearsal
    shipped = {row["engine"]: row for row in report["parts"]["engines"]["rows"]}
    debug = {row["engine"]: row for row in report["parts"]["layers"]["rows"]}
    for name, rows in (("engines", shipped), ("layers", debug)):
        assert report["parts"][name]["failures"] == []
        assert rows["tensorrt-rtx-fp16"]["plugin layers"] == 2
        assert rows["tensorrt-rtx-fp16-native"]["plugin layers"] == 0
    for row in debug.values():
        assert row["layer by layer"].startswith("not available: ")
        assert row["layer by layer"] in page


@pytest.mark.skipif(not without_gpu_reason(), reason="a GPU is here: nothing is unavailable")
def test_without_a_gpu_every_part_says_so_and_none_fails(tmp_path: Path) -> None:
    code, report, page = check(tmp_path)
    assert code == 0
    assert {part["status"] for part in report["parts"].values()} == {"not available"}
    assert "torch sees no CUDA GPU" in report["parts"]["build"]["reason"]
    assert "see the part build" in report["parts"]["timing"]["reason"]
    assert page.count("not available") >= 6


def load_check() -> Any:
    spec = importlib.util.spec_from_file_location("gpu_check", HERE / "gpu_check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import os; os.abort()", "exit code -6"),
        ("import sys; sys.exit('out of luck')", "exit code 1: out of luck"),
        ("import time; time.sleep(60)", "not finished in 1 s"),
    ],
    ids=["crash", "exit", "hang"],
)
def test_a_part_that_dies_is_a_failed_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, reason: str
) -> None:
    module = load_check()
    script = tmp_path / "part.py"
    script.write_text(program)
    monkeypatch.setattr(module, "__file__", str(script))
    result = module.start_part("model", tmp_path, rehearse=True, seconds=1 if "sleep" in program else 60)
    assert result["status"] == "failed"
    assert reason in result["reason"]


SLOW_PART = """
import subprocess, sys, time
from pathlib import Path
sys.path.insert(0, {here!r})
from gpu_parts import PartResult
result = PartResult(file=Path({file!r}))
result.row({{"engine": "one", "us": 1.0}})
result.goal("fast", met=True, measured="1 us")
result.fail("one: out of budget")
# What a part has started holds its output open.
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
time.sleep(600)
"""


def test_a_part_that_is_stopped_has_not_lost_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load_check()
    script = tmp_path / "part.py"
    found = module.findings_file(tmp_path, "engines")
    script.write_text(SLOW_PART.format(here=str(HERE), file=str(found)))
    monkeypatch.setattr(module, "__file__", str(script))
    result = module.start_part("engines", tmp_path, rehearse=False, seconds=10)
    assert result["status"] == "failed"
    assert result["reason"] == "not finished in 10 s; one: out of budget"
    assert result["rows"] == [{"engine": "one", "us": 1.0}]
    assert [goal["goal"] for goal in result["goals"]] == ["fast"]
    assert result["seconds"] < 30


def test_an_exception_in_a_part_leaves_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load_check()

    def run(built: Any, result: Any) -> None:
        result.row({"engine": "one"})
        raise ValueError("the second")

    monkeypatch.setitem(sys.modules, "part_engines", SimpleNamespace(run=run))
    built = {"device": "cpu", "plugin": "p", "harness": "h", "cache": "c", "nvcc": None}
    (tmp_path / "built.json").write_text(json.dumps(built))
    module.run_part("engines", tmp_path, rehearse=True)
    result = json.loads(module.result_file(tmp_path, "engines").read_text())
    assert (result["status"], result["reason"]) == ("failed", "ValueError: the second")
    assert result["rows"] == [{"engine": "one"}]


def test_all_parts_together_stay_under_six_minutes() -> None:
    assert sum(load_check().PARTS.values()) <= 340


def test_a_missing_module_makes_its_part_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load_check()

    def part_result(name: str, out: Path, *, rehearse: bool, seconds: float | None) -> dict[str, Any]:
        raise ModuleNotFoundError("No module named 'polygraphy'", name="polygraphy")

    monkeypatch.setattr(module, "part_result", part_result)
    module.run_part("engines", tmp_path, rehearse=True)
    result = json.loads((tmp_path / "part_engines.json").read_text())
    assert result == {"status": "not available", "reason": "the module polygraphy cannot be imported"}


def test_an_unknown_part_is_a_usage_error(tmp_path: Path) -> None:
    finished = subprocess.run(
        [sys.executable, str(HERE / "gpu_check.py"), str(tmp_path), "--parts", "build,nothing"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 2
    assert "unknown part nothing" in finished.stderr


# --- parts that are carried over ------------------------------------------------------------------------------------


TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"


def archive(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ARCHIVE), *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "one-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("one/__init__.py", "value = 1\n")
        wheel.writestr("one/data.bin", bytes(range(256)) * 1000)
    return folder


def test_packed_wheels_are_joined_again(tmp_path: Path, wheels: Path) -> None:
    parts, site = tmp_path / "parts", tmp_path / "site"
    parts.mkdir()
    packed = archive("pack", wheels, parts, f"1-one-{TAG}")
    assert packed.returncode == 0, packed.stderr
    assert archive("pack", wheels, parts, f"2-two-{TAG}").returncode == 0
    joined = archive("join", parts, site)
    assert joined.stdout.split() == [str(site / f"1-one-{TAG}"), str(site / f"2-two-{TAG}")]
    assert (site / f"1-one-{TAG}" / "one" / "data.bin").read_bytes() == bytes(range(256)) * 1000
    answer = subprocess.run(
        [sys.executable, "-c", "import one; print(one.value)"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(site / f"1-one-{TAG}")},
        check=True,
    )
    assert answer.stdout == "1\n"


def test_archives_are_split_into_parts_of_the_size_that_was_set(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gpu_archive.PART_BYTES == 60_000_000
    monkeypatch.setattr(gpu_archive, "PART_BYTES", 100)
    parts = gpu_archive.pack(wheels, tmp_path, f"1-one-{TAG}")
    assert len(parts) > 3
    assert all(part.stat().st_size == 100 for part in parts[:-1])
    assert 0 < parts[-1].stat().st_size <= 100
    sums = (tmp_path / "SHA256SUMS").read_text().splitlines()
    assert sums == [f"{hashlib.sha256(part.read_bytes()).hexdigest()}  {part.name}" for part in parts]
    assert list(gpu_archive.join(tmp_path, tmp_path / "site")) == [tmp_path / "site" / f"1-one-{TAG}"]
    assert (tmp_path / "site" / f"1-one-{TAG}" / "one" / "__init__.py").read_text() == "value = 1\n"


@pytest.mark.parametrize(("damage", "reason"), [("missing", "missing: 1-one"), ("changed", "damaged: 1-one")])
def test_an_incomplete_group_is_named_and_left_out(tmp_path: Path, wheels: Path, damage: str, reason: str) -> None:
    parts, site = tmp_path / "parts", tmp_path / "site"
    parts.mkdir()
    archive("pack", wheels, parts, f"1-one-{TAG}")
    archive("pack", wheels, parts, f"2-two-{TAG}")
    spoiled = parts / f"1-one-{TAG}.tar.xz.000"
    if damage == "missing":
        spoiled.unlink()
    else:
        spoiled.write_bytes(spoiled.read_bytes()[:-1] + b"?")
    joined = archive("join", parts, site)
    assert joined.returncode == 0
    assert joined.stdout.split() == [str(site / f"2-two-{TAG}")]
    assert f"not available: 1-one-{TAG}: {reason}" in joined.stderr
    assert not (site / f"1-one-{TAG}").exists()


def test_a_group_for_another_python_is_named_and_left_out(tmp_path: Path, wheels: Path) -> None:
    archive("pack", wheels, tmp_path, "1-one-cp299")
    joined = archive("join", tmp_path, tmp_path / "site")
    assert joined.stdout == ""
    assert f"not available: 1-one-cp299: this is {TAG}" in joined.stderr


# --- on a GPU -------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("part", ["accuracy", "model", "sanitizer", "timing", "variants"])
def test_the_part_passes_on_this_gpu(tmp_path_factory: pytest.TempPathFactory, part: str) -> None:
    # One folder for all parts: what is built is built once.
    folder = tmp_path_factory.getbasetemp() / "gpu-check"
    code, report, _ = check(folder, "--parts", f"build,{part}")
    assert code == 0, report["parts"]
    assert report["parts"][part]["status"] == "passed", report["parts"][part]
