"""Faults in what the quantised graphs store: found by the proof, in the node that holds them, not before.

Errors are accumulated here: a bias of block 1, which the rounding of int4 before it hides, is not among them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from andrea_export.bundle.manifest import file_entry, open_bundle, seal
from andrea_export.targets.ort_cpu.files import files_of
from tests.conftest import Andrea


def scale_doubled(array: np.ndarray) -> None:
    array *= 2


def tiles_swapped(array: np.ndarray) -> None:
    array[[0, 1]] = array[[1, 0]]


def emptied(array: np.ndarray) -> None:
    array[:] = 0


FAULTS: dict[str, tuple[str, Callable[[np.ndarray], None], str]] = {
    "a wrong scale": ("blocks.0.mlp.fc.weight_scale", scale_doubled, "blocks.0.mlp.gelu"),
    "swapped blocks of weights": ("blocks.0.mlp.proj.weight_packed_int{bits}", tiles_swapped, "blocks.0.mlp_residual"),
    "a dropped bias": ("blocks.0.attn.qkv.bias", emptied, "blocks.0.attn.qkv"),
    "a wrong scale of the tied matrix": ("token_embed.weight_scale", scale_doubled, "token_embed"),
}


@pytest.mark.parametrize(("weight", "change", "layer"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_named_by_the_node_that_holds_it(
    andrea: Andrea,
    ort_bundle: Path,
    tmp_path: Path,
    weight: str,
    change: Callable[[np.ndarray], None],
    layer: str,
) -> None:
    bundle = Path(shutil.copytree(ort_bundle, tmp_path / "bundle"))
    entries = dict(open_bundle(bundle).manifest.files)
    for precision, bits in (("int8", 8), ("int4", 4)):
        files = files_of(precision)
        plant(bundle / files.graph, weight.format(bits=bits), change)
        entries |= {name: file_entry(bundle / name) for name in files.all}
    seal(bundle, replace(open_bundle(bundle, verify=False).manifest, files=entries))
    outcome = andrea("validate", bundle, "--json")
    assert outcome.code == 1
    rows = json.loads(outcome.stdout)["layers"]
    for name in ("ort-cpu-int8", "ort-cpu-int4"):
        failed = [row["name"] for row in rows if row["candidate"] == name and row["verdict"] == "fail"]
        assert failed and failed[0] == layer, name
    assert not [row for row in rows if row["verdict"] == "fail" and row["candidate"] == "ort-cpu-fp32"]


def plant(graph: Path, weight: str, change: Callable[[np.ndarray], None]) -> None:
    model = onnx.load(graph)
    (tensor,) = (tensor for tensor in model.graph.initializer if tensor.name == weight)
    array = numpy_helper.to_array(tensor).copy()
    change(array)
    tensor.CopyFrom(numpy_helper.from_array(array, weight))
    data = graph.with_name(f"{graph.name}.data")
    data.unlink()
    onnx.save(model, graph, save_as_external_data=True, location=data.name)
