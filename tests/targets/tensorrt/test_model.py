"""The file given to TensorRT: what it holds, what it shares with the canonical file, which is never touched."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from andrea_export.core.errors import PassError
from andrea_export.core.precision import PRECISIONS, EnginePrecision
from andrea_export.graph.passes.gelu_nodes import NativeGelu
from andrea_export.graph.passes.graph_edits import run_passes
from andrea_export.operators.sources import andrea_gelu
from andrea_export.targets.tensorrt.model import derive_engine_model
from andrea_export.weights.load import LoadedModel

GELUS = ("blocks.0.mlp.gelu", "blocks.1.mlp.gelu")


def _digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("plugin", [True, False], ids=["plugin", "native"])
def test_derived_file(tiny_onnx: Path, tmp_path: Path, precision: EnginePrecision, plugin: bool) -> None:
    before = _digests(tiny_onnx.parent)
    derived = derive_engine_model(
        tiny_onnx, precision=PRECISIONS[precision], plugin=plugin, parser_knows_attention=True, folder=tmp_path
    )
    assert derived.gelu_layers == GELUS
    proto = onnx.load(derived.path, load_external_data=False)
    op_types = [node.op_type for node in proto.graph.node]
    assert not proto.functions
    assert op_types.count("AndreaGelu") == (2 if plugin else 0)
    assert op_types.count("Gelu") == (0 if plugin else 2)
    assert op_types.count("Attention") == (2 if PRECISIONS[precision].attention_node else 0)
    assert (b"plugin_" in derived.path.read_bytes()) is plugin
    # The canonical file is as it was, and has one name only: with a second one, onnxruntime and onnx refuse it.
    assert _digests(tiny_onnx.parent) == before
    assert all(file.stat().st_nlink == 1 for file in tiny_onnx.parent.iterdir())


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_weights_that_do_not_change_are_not_written(
    tiny: LoadedModel, tiny_onnx: Path, tmp_path: Path, precision: EnginePrecision
) -> None:
    derive_engine_model(
        tiny_onnx, precision=PRECISIONS[precision], plugin=True, parser_knows_attention=True, folder=tmp_path
    )
    written = {file.name: file.stat().st_size for file in tmp_path.iterdir() if not file.is_symlink()}
    assert (tmp_path / "model.onnx.data").is_symlink()
    if precision == "fp32":
        assert set(written) == {"model.onnx"}
        return
    # The matrices of the half modules at two bytes each, and nothing of the embeddings; biases are inside model.onnx.
    num_half = sum(
        parameter.numel()
        for name, parameter in tiny.model.named_parameters()
        if parameter.ndim == 2 and name.startswith("blocks.")
    )
    assert written[f"{precision}.data"] == 2 * num_half
    assert written["model.onnx"] < 64 << 10


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_tied_matrix_is_stored_once(
    tiny: LoadedModel, tiny_onnx: Path, tmp_path: Path, precision: EnginePrecision
) -> None:
    derived = derive_engine_model(
        tiny_onnx, precision=PRECISIONS[precision], plugin=True, parser_knows_attention=True, folder=tmp_path
    )
    vocabulary = (tiny.config.vocab_size, tiny.config.d_model)
    shapes = [tuple(tensor.dims) for tensor in onnx.load(derived.path, load_external_data=False).graph.initializer]
    assert shapes.count(vocabulary) == 1 and vocabulary[::-1] not in shapes
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    matrix = tiny.model.token_embed.weight.detach().numpy()
    assert stored.count(matrix[5].tobytes()) == 1
    assert stored.count(np.ascontiguousarray(matrix.T)[5].tobytes()) == 0


def test_a_parser_without_attention_gets_none(tiny_onnx: Path, tmp_path: Path) -> None:
    derived = derive_engine_model(
        tiny_onnx, precision=PRECISIONS["fp32"], plugin=True, parser_knows_attention=False, folder=tmp_path
    )
    op_types = {node.op_type for node in onnx.load(derived.path, load_external_data=False).graph.node}
    assert "Attention" not in op_types and "Softmax" in op_types


def test_a_file_that_is_not_canonical_is_refused(tiny_onnx: Path, tmp_path: Path) -> None:
    for file in tiny_onnx.parent.iterdir():
        shutil.copy(file, tmp_path)
    model = ir.load(tmp_path / "model.onnx")
    run_passes(model, NativeGelu(andrea_gelu()))
    ir.save(model, tmp_path / "native.onnx")
    folder = tmp_path / "derived"
    folder.mkdir()
    with pytest.raises(PassError, match=r"no com\.andrea::AndreaGelu node"):
        derive_engine_model(
            tmp_path / "native.onnx",
            precision=PRECISIONS["fp32"],
            plugin=True,
            parser_knows_attention=True,
            folder=folder,
        )
