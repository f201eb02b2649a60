"""A target is a folder and a line: what is derived from the lines, and one more target than there is."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from andrea_export.core.errors import BackendUnavailable, UsageError
from andrea_export.core.precision import BUILT_PRECISIONS
from andrea_export.core.progress import Silent
from andrea_export.sessions.base import Availability
from andrea_export.targets.registry import REGISTRY, in_build_order, target_of
from andrea_export.targets.tensorrt import backend
from support.paths import ROOT

# A program in which there is one more target from the start, as there is once its line stands in the registry.
WITH_A_TOY = """
import sys
from andrea_export.targets.registry import REGISTRY, Row
REGISTRY["toy"] = Row(home="support.toy_target:ToyTarget")
from andrea_export.cli import main
main(sys.argv[1:])
"""


def andrea_with_a_toy(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.append({str(ROOT / 'tests')!r})\n{WITH_A_TOY}", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_a_target_is_added_by_a_line(tmp_path: Path, cache_dir: Path) -> None:
    """The command line takes it, its step is made and reused, and a bundle with its files is a bundle."""
    build = ("build", "out", "--preset", "andrea-tiny", "--target", "toy", "--cache-dir", str(cache_dir))
    done = andrea_with_a_toy(tmp_path, *build)
    assert done.returncode == 0, done.stderr
    size = (tmp_path / "out" / "model.onnx").stat().st_size
    assert (tmp_path / "out" / "toy-size.txt").read_text() == f"{size}\n"
    assert [line.split()[:2] for line in done.stdout.splitlines() if "made:" in line] == [
        ["onnx", "made:"],
        ["toy", "made:"],
        ["validate", "made:"],
    ]
    checks = json.loads((tmp_path / "out" / "report.json").read_text())["checks"]
    assert [(check["name"], check["verdict"]) for check in checks] == [("weights", "pass"), ("toy", "pass")]
    (tmp_path / "out" / "toy-size.txt").write_text("0\n")
    again = andrea_with_a_toy(tmp_path, *build)
    assert again.returncode == 0, again.stderr
    assert "made again: its files in the earlier bundle are not the ones that were sealed" in again.stdout
    assert again.stdout.count("reused: nothing it is made from has changed") == 2
    refused = andrea_with_a_toy(
        tmp_path, "build", "other", "--preset", "andrea-tiny", "--target", "onnx", "--seed", "13"
    )
    assert (refused.returncode, refused.stderr.splitlines()[0]) == (2, "error: toy: the seed is 13")
    assert "What to make: onnx, ort-cpu, tensorrt, tensorrt-rtx or toy." in " ".join(
        andrea_with_a_toy(tmp_path, "build", "--help").stdout.replace("│", "").split()
    )


def test_without_its_line_there_is_no_such_target(tmp_path: Path, andrea: Any) -> None:
    assert andrea("build", tmp_path / "out", "--target", "toy").code == 2
    with pytest.raises(UsageError, match="unknown target 'toy'") as caught:
        target_of("toy")
    assert caught.value.hint == "targets: onnx, ort-cpu, tensorrt, tensorrt-rtx"


def test_names_and_precisions_are_those_of_the_tables() -> None:
    for name, row in REGISTRY.items():
        assert target_of(name).name == name
        assert set(row.precisions) <= set(BUILT_PRECISIONS)
        assert target_of(name).artifacts


def test_targets_are_built_in_the_tables_order() -> None:
    names = ["onnx", "ort-cpu", "tensorrt", "tensorrt-rtx"]
    assert [target.name for target in in_build_order(names[::-1])] == names == list(REGISTRY)


def test_knowing_the_targets_imports_none_of_them() -> None:
    program = (
        "import sys; from andrea_export.targets.registry import REGISTRY\n"
        "print([name for name in ('numpy', 'pydantic', 'onnx', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_targets_class_imports_no_toolchain() -> None:
    program = (
        "import sys; from andrea_export.targets.registry import REGISTRY, target_of\n"
        "for name in REGISTRY:\n    target_of(name)\n"
        "print([name for name in ('torch', 'onnx_ir', 'tensorrt', 'polygraphy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_precision_of_targets_that_were_left_out_is_not_in_the_bundles_recipe(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fp16 is an engine's; where no engine can be built, the bundle is that of its ONNX file, and says so."""
    from andrea_export.build.build import build_bundle
    from andrea_export.bundle.manifest import open_bundle
    from andrea_export.targets.recipe import recipe_from_mapping

    absent = Availability(available=False, reason="no such package")
    monkeypatch.setattr(backend.EngineBackend, "can_build", lambda self: absent)
    recipe = recipe_from_mapping({"preset": "andrea-tiny", "precisions": ["fp16"]}, where="test")
    result = build_bundle(
        tmp_path / "out", recipe, checkpoint=None, force=False, cache_dir=cache_dir, progress=Silent()
    )
    assert len(result.left_out) == 2
    stored = open_bundle(tmp_path / "out").manifest.recipe
    assert (stored.targets, stored.precisions) == (("onnx", "ort-cpu"), ("fp32",))
    with pytest.raises(BackendUnavailable, match="target tensorrt: no such package"):
        build_bundle(
            tmp_path / "asked",
            recipe_from_mapping({"targets": ["tensorrt"]}, where="test"),
            checkpoint=None,
            force=False,
            cache_dir=cache_dir,
            progress=Silent(),
        )


def test_a_target_is_made_on_every_python() -> None:
    """A Protocol's own ``__init__`` is overwritten before Python 3.11, so what has one is an abstract base class."""
    with_init = [
        f"{file.name}: {node.name}"
        for file in (ROOT / "andrea_export").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        and any(getattr(base, "id", "") == "Protocol" for base in node.bases)
        and any(isinstance(entry, ast.FunctionDef) and entry.name == "__init__" for entry in node.body)
    ]
    assert with_init == []
