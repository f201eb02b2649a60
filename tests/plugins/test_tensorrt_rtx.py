"""The plugin in the real TensorRT-RTX: graphs of every type and rank, and every misuse, without a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from andrea_export.operators.build import PluginBuild
from andrea_export.operators.sources import andrea_gelu

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None,
    reason="tensorrt_rtx is not installed (pip install 'andrea-export[rtx]')",
)

HERE = Path(__file__).resolve().parent
TYPES = ("fp32", "fp16", "bf16")
TRT_TYPES = {"fp32": "DataType.FLOAT", "fp16": "DataType.HALF", "bf16": "DataType.BF16"}
DYNAMIC = {"min": 0, "opt": 3, "max": 8}


def environment(folder: Path) -> dict[str, str]:
    """What the 1.7 wheel needs: its parser opens libtensorrt_rtx.so, and the wheel ships only libtensorrt_rtx.so.1."""
    spec = importlib.util.find_spec("tensorrt_rtx_libs")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    link = folder / "libtensorrt_rtx.so"
    link.symlink_to(Path(spec.submodule_search_locations[0]) / "libtensorrt_rtx.so.1")
    return {**os.environ, "LD_LIBRARY_PATH": f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"}


def run_child(folder: Path, library: Path, mode: str, stdin: str = "") -> list[dict[str, Any]]:
    finished = subprocess.run(
        [sys.executable, str(HERE / "rtx_cases.py"), str(library), mode],
        input=stdin,
        capture_output=True,
        text=True,
        env=environment(folder),
        timeout=300,
        check=False,
    )
    answers = [json.loads(line) for line in finished.stdout.splitlines() if line.startswith("{")]
    assert finished.returncode == 0, f"after {len(answers)} answers: {finished.stdout[-500:]} {finished.stderr[-2000:]}"
    return answers


class Cases(dict[str, dict[str, Any]]):
    """Every case by name; all are built in one child process, on first use."""


def all_cases() -> Cases:
    cases = Cases()
    for storage in TYPES:
        for rank in range(9):
            shape: list[int | str] = [2, 3, 1, 2, 1, 1, 2, 1][:rank]
            cases[f"{storage} static rank {rank}"] = {"type": storage, "shape": shape}
        for rank in range(1, 6):
            shape = ["n", 3, 4, 2, 5][:rank]
            cases[f"{storage} dynamic rank {rank}"] = {"type": storage, "shape": shape, "range": DYNAMIC}
        cases[f"{storage} all dynamic"] = {"type": storage, "shape": ["a", "b", "c"], "range": DYNAMIC}
        cases[f"{storage} empty"] = {"type": storage, "shape": [4, 0, 7]}
        cases[f"{storage} four nodes"] = {"type": storage, "shape": ["n", 96], "range": DYNAMIC, "num_nodes": 4}
        cases[f"{storage} not embedded"] = {"type": storage, "shape": [2, 3], "embed": False}
    ordinary = {"type": "fp32", "shape": [2, 3]}
    cases["wrong namespace"] = {**ordinary, "attributes": {"plugin_namespace": "com.other"}}
    cases["wrong version"] = {**ordinary, "attributes": {"plugin_version": "2"}}
    cases["no namespace"] = {**ordinary, "attributes": {"plugin_namespace": None}}
    cases["wrong name"] = {**ordinary, "op_type": "AndreaGelu2"}
    cases["unknown attribute"] = {**ordinary, "attributes": {"approximate": "tanh", "alpha": 0.5}}
    cases["two inputs"] = {**ordinary, "num_inputs": 2}
    cases["int32"] = {"type": "int32", "shape": [2, 3]}
    cases["bool"] = {"type": "bool", "shape": [2, 3]}
    return cases


CASES = all_cases()


@pytest.fixture(scope="module")
def results(plugin_build: PluginBuild, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("rtx")
    answers = run_child(folder, plugin_build.library, "cases", json.dumps(list(CASES.values())))
    return dict(zip(CASES, answers, strict=True))


ACCEPTED = [name for name in CASES if name.split()[0] in TYPES]


@pytest.mark.parametrize("name", ACCEPTED)
def test_builds_with_one_plugin_layer_a_node(results: dict[str, dict[str, Any]], name: str) -> None:
    case, result = CASES[name], results[name]
    assert result["errors"] == []
    assert result["parsed"]
    assert result["plugin_layers"] == result["layers"] == case.get("num_nodes", 1)
    assert result["output_type"] == TRT_TYPES[case["type"]]
    assert result["output_shape"] == [-1 if isinstance(extent, str) else extent for extent in case["shape"]]
    assert result["engine_bytes"] > 0
    assert result["embedded"] == case.get("embed", True)


def test_an_unknown_attribute_changes_nothing(results: dict[str, dict[str, Any]]) -> None:
    """The parser hands over only the attributes the creator asks for, which are none."""
    result = results["unknown attribute"]
    assert result["errors"] == []
    assert result["plugin_layers"] == 1
    assert result["engine_bytes"] > 0


@pytest.mark.parametrize("name", ["wrong namespace", "no namespace"])
def test_another_namespace_finds_the_plugin_or_is_refused(results: dict[str, dict[str, Any]], name: str) -> None:
    """TensorRT-RTX 1.7 takes the plugin of that name and version whatever the namespace; either is clear."""
    result = results[name]
    if result["parsed"]:
        assert result["plugin_layers"] == 1
        assert result["engine_bytes"] > 0
    else:
        assert any("AndreaGelu" in error for error in result["errors"])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("wrong version", "AndreaGelu"),
        ("wrong name", "AndreaGelu2"),
        ("two inputs", "AndreaGelu"),
        ("int32", "AndreaGelu"),
        ("bool", "AndreaGelu"),
    ],
)
def test_misuse_is_refused_with_a_reason(results: dict[str, dict[str, Any]], name: str, reason: str) -> None:
    result = results[name]
    assert not result["parsed"] or result["engine_bytes"] == 0
    assert any(reason in error for error in result["errors"]), result


def test_fuzz_finds_no_crash(plugin_build: PluginBuild, measured: list[str], tmp_path: Path) -> None:
    """Hypothesis draws shapes, types, node counts and embedding; one child process survives them all."""
    (answer,) = run_child(tmp_path, plugin_build.library, "fuzz")
    counts = answer["fuzz"]
    assert counts["built"] >= 50
    assert counts["refused"] >= 20
    measured.append(f"TensorRT-RTX fuzz: {counts['built']} graphs built, {counts['refused']} refused, none crashed")


def test_the_op_row_names_these_types() -> None:
    assert set(andrea_gelu().storage_types) == set(TYPES)
