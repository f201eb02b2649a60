"""The part of a manifest that running a bundle needs: the same as the whole says, and as hard to fool."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import andrea_export
from andrea_export.bundle.contents import FileEntry, read_contents
from andrea_export.bundle.layout import MANIFEST
from andrea_export.bundle.manifest import open_bundle
from andrea_export.core.errors import BundleError, ValidationError

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
        "heavy = ['pydantic', 'torch', 'onnx', 'typer', 'rich', 'jinja2', 'importlib.metadata']\n"
        "import numpy\n"
        "heavy += ['numpy.random'] if int(numpy.__version__.split('.')[0]) > 1 else []  # 1.x imports it itself\n"
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
    "no verdict": (_without("verdict"), "is damaged: it has no verdict"),
    "a verdict in a list": (_with(["pass"], "verdict"), r"verdict is \['pass'\], expected a string"),
    "no model": (_without("config"), "it has no config"),
    "a model of words": (_with("ANDREA", "config"), "config is 'ANDREA', expected an object"),
    "a width of words": (_with("wide", "config", "d_model"), "d_model is 'wide', expected a whole number"),
    "a width of none": (_without("config", "d_model"), "config has no d_model"),
    "an unknown shape": (_with(3, "config", "n_gates"), "config has an unknown 'n_gates'"),
    "no epsilon": (_with("small", "config", "layer_norm_epsilon"), "layer_norm_epsilon is 'small', expected between"),
    "an origin of words": (_with("Russell", "origin"), "origin is 'Russell', expected an object"),
    "a seed of words": (_with("five", "origin", "seed"), "the origin's seed is 'five'"),
    "a checkpoint in a list": (_with(["a"], "origin", "checkpoint"), r"the origin's checkpoint is \['a'\]"),
    "an unknown origin": (_with(1, "origin", "author"), "origin has an unknown 'author'"),
    "files in a list": (_with(["model.onnx"], "files"), r"files is \['model.onnx'\], expected an object"),
    "a file of words": (_with("here", "files", "model.onnx"), "entry is 'here', expected sha256 and num_bytes"),
    "a file without a hash": (_without("files", "model.onnx", "sha256"), "expected sha256 and num_bytes"),
    "a file with more": (_with(1, "files", "model.onnx", "crc"), "expected sha256 and num_bytes"),
    "a hash that is a number": (_with(5, "files", "model.onnx", "sha256"), "sha256 is 5, expected a string"),
    "a length that is a word": (
        _with("long", "files", "model.onnx", "num_bytes"),
        "num_bytes is 'long', expected a",
    ),
    "a file outside": (
        _with({"sha256": "0", "num_bytes": 1}, "files", "../secret"),
        r"outside the bundle: \.\./secret",
    ),
    "a graph that is not sealed": (
        _without("files", "ort-cpu-int8.onnx.data"),
        r"has no sha256 for ort-cpu-int8\.onnx\.data",
    ),
    "a report that is not sealed": (_without("files", "report.json"), r"has no sha256 for report\.json"),
    "a precision that is none": (_with(["int9"], "ort_cpu"), "ort_cpu has 'int9', expected fp32, int8, int4"),
    "precisions in a number": (_with(7, "ort_cpu"), "ort_cpu is 7, expected a list"),
    "precisions that are lists": (_with([["int8"]], "ort_cpu"), r"ort_cpu has \['int8'\], expected fp32"),
    "a precision twice": (_with(["int8", "int8"], "ort_cpu"), "ort_cpu names one precision twice: int8, int8"),
    "a name with a zero": (
        _with({"sha256": "0", "num_bytes": 1}, "files", "a\0b"),
        r"names a file that cannot have that name: 'a\\x00b'",
    ),
    "a name that is no text": (
        _with({"sha256": "0", "num_bytes": 1}, "files", "\ud800"),
        r"names a file that cannot have that name: '\\ud800'",
    ),
    "a width of any length": (_with("x" * 5000, "config", "d_model"), r"d_model is 'x+\.\.\.x+', expected"),
    "a verdict of any length": (
        _with(list(range(9999)), "verdict"),
        r"verdict is \[0, 1, 2, .*\.\.\.\], expected",
    ),
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
        open_bundle(tmp_path, verify=False)


def test_a_plugin_must_be_sealed_where_the_manifest_tells_of_one(ort_bundle: Path, tmp_path: Path) -> None:
    manifest = json.loads((ort_bundle / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps({**manifest, "plugin": {"nvcc_version": "13.0"}}))
    with pytest.raises(BundleError, match=r"has no sha256 for plugins/libandrea_plugins\.so"):
        read_contents(tmp_path)


def test_a_file_that_cannot_be_looked_at_is_named(ort_bundle: Path) -> None:
    contents = read_contents(ort_bundle)
    strange = replace(contents, files={**contents.files, "a" * 300: FileEntry(sha256="0", num_bytes=1)})
    with pytest.raises(BundleError, match=r"a{300} cannot be read: File name too long"):
        strange.check()


@pytest.mark.parametrize(
    "change", [{"n_layer": 1}, {"n_layer": 1000}, {"n_head": 8}, {"n_ctx": 2048}, {"layer_norm_epsilon": 1e-6}]
)
@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_a_manifest_about_another_shape_opens_no_model(
    ort_bundle: Path, tmp_path: Path, change: Manifest, precision: str
) -> None:
    bundle = Path(shutil.copytree(ort_bundle, tmp_path / "bundle"))
    manifest = json.loads((bundle / MANIFEST).read_text())
    manifest["config"].update(change)
    (bundle / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=r"is not of the shape that manifest\.json describes"):
        andrea_export.load(bundle, provider="cpu", precision=precision)


def test_a_verdict_that_is_not_pass_does_not_run(ort_bundle: Path, tmp_path: Path) -> None:
    """Whatever it says: what the part does not know is no pass."""
    bundle = Path(shutil.copytree(ort_bundle, tmp_path / "bundle"))
    manifest = json.loads((bundle / MANIFEST).read_text())
    for verdict in ("fail", "not-measured", "splendid"):
        (bundle / MANIFEST).write_text(json.dumps({**manifest, "verdict": verdict}))
        with pytest.raises(ValidationError, match="so it is not run"):
            andrea_export.load(bundle, provider="cpu")
