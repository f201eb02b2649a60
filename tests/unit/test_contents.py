"""The part of a manifest that running a bundle needs: the same as the whole says, and as hard to fool."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import andrea_export
from andrea_export.bundle import open_bundle
from andrea_export.contents import MANIFEST, read_contents
from andrea_export.errors import BundleError, ValidationError

Manifest = dict[str, Any]


def test_the_part_says_what_the_whole_says(ort_bundle: Path) -> None:
    contents = read_contents(ort_bundle)
    assert contents == open_bundle(ort_bundle).contents
    assert set(contents.ort_cpu) == {"fp32", "int8", "int4"}
    contents.check()


def test_a_program_that_runs_a_bundle_loads_no_library_to_validate_with(ort_bundle: Path) -> None:
    program = (
        "import sys, andrea_export\n"
        "with andrea_export.load(sys.argv[1], provider='cpu', precision='int8') as model:\n"
        "    assert len(list(model.generate([5, 17], max_new_tokens=2))) == 2\n"
        "heavy = ('pydantic', 'torch', 'onnx', 'typer', 'rich', 'jinja2', 'numpy.random')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program, str(ort_bundle)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _without(*keys: str) -> Callable[[Manifest], None]:
    def change(manifest: Manifest) -> None:
        for key in keys[:-1]:
            manifest = manifest[key]
        del manifest[keys[-1]]

    return change


def _with(value: Any, *keys: str) -> Callable[[Manifest], None]:
    def change(manifest: Manifest) -> None:
        for key in keys[:-1]:
            manifest = manifest[key]
        manifest[keys[-1]] = value

    return change


DAMAGE: dict[str, tuple[Callable[[Manifest], None], str]] = {
    "no verdict": (_without("verdict"), "is damaged: 'verdict'"),
    "a verdict in a list": (_with(["pass"], "verdict"), r"is damaged: its verdict is \['pass'\]"),
    "no model": (_without("config"), "is damaged: 'config'"),
    "a model of words": (_with("ANDREA", "config"), "is damaged"),
    "a width of words": (_with("wide", "config", "d_model"), "d_model is 'wide', expected a whole number"),
    "a width of none": (_without("config", "d_model"), "is damaged: .*d_model"),
    "an unknown shape": (_with(3, "config", "n_gates"), "is damaged: .*n_gates"),
    "no epsilon": (_with("small", "config", "layer_norm_epsilon"), "is damaged"),
    "an origin of words": (_with("Russell", "origin"), "is damaged"),
    "files in a list": (_with(["model.onnx"], "files"), "is damaged"),
    "a file of words": (_with("here", "files", "model.onnx"), "is damaged"),
    "a file without a hash": (_without("files", "model.onnx", "sha256"), "is damaged: 'sha256'"),
    "a hash that is a number": (_with(5, "files", "model.onnx", "sha256"), "is damaged: a file's entry is"),
    "a length that is a word": (_with("long", "files", "model.onnx", "num_bytes"), "is damaged: a file's entry is"),
    "a file outside": (
        _with({"sha256": "0", "num_bytes": 1}, "files", "../secret"),
        r"outside the bundle: \.\./secret",
    ),
    "a graph that is not sealed": (
        _without("files", "ort-cpu-int8.onnx.data"),
        r"has no sha256 for ort-cpu-int8\.onnx\.data",
    ),
    "a precision that is none": (_with(["int9"], "ort_cpu"), "has no sha256 for ort-cpu-int9"),
    "precisions in a number": (_with(7, "ort_cpu"), "is damaged"),
    "precisions that are lists": (_with([["int8"]], "ort_cpu"), "is damaged|has no sha256"),
    "no recipe": (_with(None, "recipe"), "is damaged"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_manifest_is_one_clear_error_that_names_it(ort_bundle: Path, tmp_path: Path, name: str) -> None:
    change, message = DAMAGE[name]
    manifest = json.loads((ort_bundle / MANIFEST).read_text())
    change(manifest)
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=message) as caught:
        read_contents(tmp_path)
    assert MANIFEST in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(BundleError):
        open_bundle(tmp_path)


def test_a_verdict_that_is_not_pass_does_not_run(ort_bundle: Path, tmp_path: Path) -> None:
    """Whatever it says: what the part does not know is no pass."""
    bundle = Path(shutil.copytree(ort_bundle, tmp_path / "bundle"))
    manifest = json.loads((bundle / MANIFEST).read_text())
    for verdict in ("fail", "not-measured", "splendid"):
        (bundle / MANIFEST).write_text(json.dumps({**manifest, "verdict": verdict}))
        with pytest.raises(ValidationError, match="so it is not run"):
            andrea_export.load(bundle, provider="cpu")
