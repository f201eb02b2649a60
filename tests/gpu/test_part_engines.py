"""The engine part's own course, with fakes for TensorRT and a GPU: what is kept when its time or an engine fails."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import part_engines
from gpu_parts import Built, NotAvailable, PartResult

BUILT = Built(device="cuda", plugin=Path("plugin.so"), harness=Path("harness.so"), cache=Path("cache"), nvcc="nvcc")


class Backend:
    """Builds nothing, at once."""

    def build(self, request: Any, progress: Any) -> Any:
        return SimpleNamespace(num_plugin_layers=12, num_network_layers=500, seconds=1.0)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(part_engines, "backend_of", lambda target: Backend)
    monkeypatch.setattr(part_engines, "request_of", lambda *arguments, **options: None)
    return SimpleNamespace(folder=tmp_path)


def measure(result: PartResult, model: Any) -> None:
    part_engines._measure(result, BUILT, model, "tensorrt")


def test_each_pair_of_engines_gives_its_goals(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(engine: Path, module: str) -> dict[str, Any]:
        return {"layers": 9, "times": {"decode": 100.0 if engine.stem.endswith("native") else 104.0}}

    monkeypatch.setattr(part_engines, "_time_engine", timed)
    result = PartResult()
    measure(result, model)
    assert [row["engine"] for row in result.rows] == [
        "tensorrt-fp16",
        "tensorrt-fp16-native",
        "tensorrt-fp32",
        "tensorrt-fp32-native",
    ]
    assert [goal["met"] for goal in result.goals] == [True, True]
    assert (model.folder / "tensorrt-fp16-native.layers").read_text() == "9"


def test_an_engine_that_time_is_too_short_for_is_not_begun(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(engine: Path, module: str) -> dict[str, Any]:
        time.sleep(0.4)
        return {"layers": 9, "times": {"decode": 100.0}}

    monkeypatch.setattr(part_engines, "_time_engine", timed)
    file = model.folder / "findings.json"
    result = PartResult(file=file, deadline=time.monotonic() + 1)
    with pytest.raises(NotAvailable, match="tensorrt-fp32 and what follows"):
        measure(result, model)
    kept = json.loads(file.read_text())
    assert [row["decode, us"] for row in kept["rows"]] == [100.0, 100.0]
    assert len(kept["goals"]) == 1


def test_a_gpu_that_runs_no_engine_is_asked_once(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_engines, "_time_engine", lambda engine, module: "timing: exit code 1: unsupported")
    result = PartResult()
    measure(result, model)
    assert result.failures == ["tensorrt-fp16: timing: exit code 1: unsupported"]
    assert len(result.rows) == 1
