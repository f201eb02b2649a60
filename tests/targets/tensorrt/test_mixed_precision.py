"""The mixed-precision pass: where its casts stand, how it rounds, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from andrea_export.core.dtypes import DTYPES
from andrea_export.core.errors import PassError
from andrea_export.core.names import MODULE_KEY, graph_inputs, graph_outputs
from andrea_export.core.precision import PRECISIONS
from andrea_export.graph.passes.graph_edits import run_passes
from andrea_export.targets.tensorrt.passes.mixed_precision import MixedPrecision, half_from_fp32
from andrea_model.config import PRESETS
from support.graphs import half_between_norms

CONFIG = PRESETS["andrea-tiny"]
HALVES = ("fp16", "bf16")


def _converted(path: Path, precision: str) -> ir.Model:
    model = ir.load(path)
    run_passes(model, MixedPrecision(PRECISIONS[precision]))
    return model


@pytest.mark.parametrize("precision", HALVES)
def test_casts_stand_at_the_four_borders_of_a_block_and_nowhere_else(tiny_onnx: Path, precision: str) -> None:
    casts = {str(node.name) for node in _converted(tiny_onnx, precision).graph if node.op_type == "Cast"}
    assert casts == {
        f"blocks.{block}.{layer}/Cast"
        for block in range(CONFIG.n_layer)
        for layer in ("ln_1", "attn.proj", "ln_2", "mlp.proj")
    }


@pytest.mark.parametrize("precision", ["fp32", *HALVES])
def test_interface_has_the_cache_in_its_own_type(tiny_onnx: Path, precision: str) -> None:
    graph = _converted(tiny_onnx, precision).graph
    cache = PRECISIONS[precision].cache_dtype
    wanted = [(spec.name, DTYPES[spec.dtype].onnx) for spec in graph_inputs(CONFIG, cache)]
    assert [(value.name, value.dtype) for value in graph.inputs] == wanted
    wanted = [(spec.name, DTYPES[spec.dtype].onnx) for spec in graph_outputs(CONFIG, cache)]
    assert [(value.name, value.dtype) for value in graph.outputs] == wanted


@pytest.mark.parametrize("precision", HALVES)
def test_layers_keep_their_names_and_have_the_rules_types(tiny_onnx: Path, precision: str) -> None:
    row = PRECISIONS[precision]
    before = {str(value.name) for node in ir.load(tiny_onnx).graph for value in node.outputs}
    values = {str(value.name): value for node in _converted(tiny_onnx, precision).graph for value in node.outputs}
    assert before <= set(values)
    for name in ("blocks.1.mlp.gelu", "blocks.0.attn.context", "blocks.0.ln_1", "blocks.1.mlp_residual", "ln_f"):
        assert values[name].dtype == DTYPES[row.module_dtype(name)].onnx, name


@pytest.mark.parametrize("precision", HALVES)
def test_the_file_is_valid_and_strictly_typed(tiny_onnx: Path, tmp_path: Path, precision: str) -> None:
    path = tmp_path / "model.onnx"
    ir.save(_converted(tiny_onnx, precision), path, external_data="weights.data")
    onnx.checker.check_model(path, full_check=True)  # full: infers every type, and refuses mixed operands


@pytest.mark.parametrize("precision", HALVES)
def test_weights_of_half_modules_are_rounded_to_nearest_even_and_others_untouched(
    tiny_onnx: Path, precision: str
) -> None:
    before = ir.load(tiny_onnx).graph.initializers
    after = _converted(tiny_onnx, precision).graph.initializers
    assert set(before) == set(after)
    row, half = PRECISIONS[precision], DTYPES[precision]
    for name, value in after.items():
        old = before[name].const_value.numpy()
        new = value.const_value.numpy()
        if old.dtype == np.float32 and row.module_dtype(name) != "fp32":
            assert new.dtype == half.numpy, name
            np.testing.assert_array_equal(new, old.astype(half.numpy))
        else:
            assert new.dtype == old.dtype, name
            np.testing.assert_array_equal(new, old)
    assert after["token_embed.weight"].dtype == after["ln_f.weight"].dtype == ir.DataType.FLOAT
    assert after["blocks.1.ln_2.bias"].dtype == ir.DataType.FLOAT


def test_rounding_is_to_nearest_ties_to_even() -> None:
    fp16, bf16 = DTYPES["fp16"], DTYPES["bf16"]
    # One and two halves of the last place above 1: the first is a tie that goes down, to even; the third one that
    # goes up.
    ties = np.array([1 + 2**-11, 1 + 2**-11 + 2**-20, 1 + 3 * 2**-11], np.float32)
    np.testing.assert_array_equal(half_from_fp32(ties, fp16), np.array([1, 1 + 2**-10, 1 + 2**-9], np.float16))
    ties = np.array([1 + 2**-8, 1 + 2**-8 + 2**-20, 1 + 3 * 2**-8], np.float32)
    wanted = np.array([1, 1 + 2**-7, 1 + 2**-6], ml_dtypes.bfloat16)
    np.testing.assert_array_equal(half_from_fp32(ties, bf16), wanted)
    # The largest fp16 is 65504; from the middle between it and the next step on there is only Inf.
    edge = np.array([65504, 65519, 65520, -65520, 2**-24, 2**-26], np.float32)
    np.testing.assert_array_equal(
        half_from_fp32(edge, fp16), np.array([65504, 65504, np.inf, -np.inf, 2**-24, 0], np.float16)
    )


def _with_weights(**weights: list[float]) -> ir.Model:
    """The small graph with other weights in its half module."""
    model = half_between_norms()
    for name, numbers in weights.items():
        value = model.graph.initializers[f"blocks.0.mlp.proj.{name}"]
        assert value.const_value is not None
        array = np.array(numbers, np.float32).reshape(value.const_value.numpy().shape)
        value.const_value = ir.Tensor(array, name=value.name)
    return model


def test_weights_that_overflow_fp16_are_named() -> None:
    with pytest.raises(PassError) as caught:
        run_passes(_with_weights(weight=[1, 2, 7e4, 4], bias=[-1e6, -1e6]), MixedPrecision(PRECISIONS["fp16"]))
    text = str(caught.value)
    assert text.startswith("MixedPrecision: 2 weights cannot be fp16: ")
    assert "blocks.0.mlp.proj.weight (1 of 4 values, largest 7e+04)" in text
    assert "blocks.0.mlp.proj.bias (2 of 2 values, largest 1e+06)" in text
    assert "bf16" in str(caught.value.hint)


def test_a_weight_too_large_for_fp16_fits_bf16_and_the_fp32_modules() -> None:
    run_passes(_with_weights(weight=[1, 2, 7e4, 4]), MixedPrecision(PRECISIONS["bf16"]))
    model = half_between_norms()
    gain = model.graph.initializers["blocks.0.ln_2.weight"]
    gain.const_value = ir.Tensor(np.array([7e4, 1], np.float32), name=gain.name)
    run_passes(model, MixedPrecision(PRECISIONS["fp16"]))


def test_a_weight_shared_across_the_border_is_refused() -> None:
    model = half_between_norms()
    proj = next(node for node in model.graph if node.name == "blocks.0.mlp.proj")
    proj.replace_input_with(1, model.graph.initializers["blocks.0.ln_2.weight"])
    with pytest.raises(PassError, match=r"blocks\.0\.ln_2\.weight is read by half and by fp32 modules"):
        run_passes(model, MixedPrecision(PRECISIONS["fp16"]))


def test_a_graph_that_is_not_plain_fp32_is_refused() -> None:
    model = half_between_norms()
    run_passes(model, MixedPrecision(PRECISIONS["fp16"]))
    with pytest.raises(PassError, match=r"needs a plain fp32 graph: node 'blocks\.0\.ln_2/Cast' is a Cast"):
        run_passes(model, MixedPrecision(PRECISIONS["fp16"]))


def test_a_node_without_a_module_is_refused() -> None:
    model = half_between_norms()
    node = next(node for node in model.graph if node.name == "blocks.0.mlp.proj")
    del node.metadata_props[MODULE_KEY]
    with pytest.raises(PassError, match=r"'blocks\.0\.mlp\.proj'.*carries no module path"):
        run_passes(model, MixedPrecision(PRECISIONS["bf16"]))


def test_a_value_without_a_type_is_refused() -> None:
    model = half_between_norms()
    node = next(node for node in model.graph if node.name == "blocks.0.ln_2")
    node.outputs[0].type = None
    with pytest.raises(PassError, match=r"'blocks\.0\.ln_2' has no type"):
        run_passes(model, MixedPrecision(PRECISIONS["fp16"]))
