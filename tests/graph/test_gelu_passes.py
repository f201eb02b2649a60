"""The two GELU passes: what each leaves a parser to take, and the graphs they refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from andrea_export.core.errors import PassError
from andrea_export.core.names import MODULE_KEY
from andrea_export.core.precision import PRECISIONS
from andrea_export.graph.passes.gelu_nodes import NativeGelu, PluginGelu, gelu_nodes
from andrea_export.graph.passes.graph_edits import run_passes
from andrea_export.operators.sources import andrea_gelu
from andrea_export.targets.tensorrt.passes.mixed_precision import MixedPrecision
from support.graphs import two_gelus

OP = andrea_gelu()


def test_plugin_gelu_leaves_only_the_plugin() -> None:
    model = two_gelus()
    assert model.functions
    run_passes(model, PluginGelu(OP))
    assert not model.functions
    assert [node.name for node in gelu_nodes(model, OP)] == ["blocks.0.mlp.gelu", "blocks.1.mlp.gelu"]
    for node in gelu_nodes(model, OP):
        attributes = {attribute.name: attribute.value for attribute in node.attributes.values()}
        assert attributes == {"plugin_namespace": "com.andrea", "plugin_version": "1"}


def test_native_gelu_leaves_no_trace_of_the_plugin(tmp_path: Path) -> None:
    model = two_gelus()
    run_passes(model, NativeGelu(OP))
    gelus = [node for node in model.graph if node.op_type == "Gelu"]
    assert [node.name for node in gelus] == ["blocks.0.mlp.gelu", "blocks.1.mlp.gelu"]
    assert [node.outputs[0].name for node in gelus] == ["blocks.0.mlp.gelu", "blocks.1.mlp.gelu"]
    assert [node.metadata_props[MODULE_KEY] for node in gelus] == ["blocks.0.mlp.gelu", "blocks.1.mlp.gelu"]
    assert all(node.attributes["approximate"].value == "tanh" for node in gelus)
    path = tmp_path / "model.onnx"
    ir.save(model, path)
    onnx.checker.check_model(path, full_check=True)
    assert b"andrea.gelu" not in path.read_bytes() and b"AndreaGelu" not in path.read_bytes()
    assert b"plugin_" not in path.read_bytes()


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_native_gelu_of_half_computes_in_fp32(precision: str) -> None:
    model = two_gelus("float16" if precision == "fp16" else "bfloat16")
    run_passes(model, NativeGelu(OP))
    half = ir.DataType.FLOAT16 if precision == "fp16" else ir.DataType.BFLOAT16
    for node in model.graph:
        if node.op_type == "Gelu":
            before, after = node.inputs[0], node.outputs[0]
            assert before is not None and before.dtype == after.dtype == ir.DataType.FLOAT
            assert before.producer().op_type == "Cast" and before.producer().inputs[0].dtype == half
            (use,) = after.uses()
            assert use.node.op_type == "Cast" and use.node.outputs[0].dtype == half
            assert use.node.name == use.node.outputs[0].name == node.metadata_props[MODULE_KEY]


@pytest.mark.parametrize("one", [PluginGelu(OP), NativeGelu(OP)], ids=["plugin", "native"])
@pytest.mark.parametrize(
    ("attribute", "value", "found"),
    [
        ("plugin_namespace", None, "blocks.1.mlp.gelu has plugin_version='1'"),
        ("plugin_version", None, "blocks.1.mlp.gelu has plugin_namespace='com.andrea'"),
        ("plugin_version", "2", "plugin_version='2'"),
        ("plugin_namespace", "", "plugin_namespace=''"),
        ("alpha", "1", "alpha='1'"),
    ],
)
def test_wrong_or_missing_attributes_are_refused(
    one: ir.passes.InPlacePass, attribute: str, value: str | None, found: str
) -> None:
    model = two_gelus()
    node = gelu_nodes(model, OP)[1]
    node.attributes.pop(attribute, None)
    if value is not None:
        node.attributes[attribute] = ir.AttrString(attribute, value)
    with pytest.raises(PassError, match=r"blocks\.1\.mlp\.gelu") as caught:
        run_passes(model, one)
    assert found in str(caught.value)
    assert "blocks.0.mlp.gelu" not in str(caught.value)
    assert caught.value.hint


def test_every_wrong_node_is_named_at_once() -> None:
    model = two_gelus()
    for node in gelu_nodes(model, OP):
        node.attributes.clear()
    with pytest.raises(
        PassError, match=r"blocks\.0\.mlp\.gelu has no attributes; blocks\.1\.mlp\.gelu has no attributes"
    ):
        run_passes(model, PluginGelu(OP))


@pytest.mark.parametrize("one", [PluginGelu(OP), NativeGelu(OP)], ids=["plugin", "native"])
def test_a_graph_without_the_custom_gelu_is_refused(one: ir.passes.InPlacePass) -> None:
    model = two_gelus()
    run_passes(model, NativeGelu(OP))
    with pytest.raises(PassError, match=r"no com\.andrea::AndreaGelu node"):
        run_passes(model, one)


def test_another_local_function_is_refused() -> None:
    model = two_gelus()
    body = next(iter(model.functions.values()))
    model.functions[("com.other", "Other", "")] = ir.Function("com.other", "Other", graph=body.graph, attributes=())
    with pytest.raises(PassError, match=r"com\.other::Other"):
        run_passes(model, PluginGelu(OP))


def test_weights_are_not_read(tiny_onnx: Path) -> None:
    """A derived fp32 graph refers to the canonical file's weights; it never copies them."""
    model = ir.load(tiny_onnx)
    before = model.graph.initializers["token_embed.weight"].const_value
    run_passes(model, MixedPrecision(PRECISIONS["fp32"]), PluginGelu(OP))
    after = model.graph.initializers["token_embed.weight"].const_value
    assert after is before and isinstance(after, ir.ExternalTensor)
    assert np.isfinite(after.numpy()).all()
