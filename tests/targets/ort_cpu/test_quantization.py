"""Codes and scales: exact bounds on what rounding may cost, and the layout the operators read."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from andrea_export.targets.ort_cpu.quantization import block_codes, channel_codes


@pytest.fixture
def weight() -> np.ndarray:
    """``[64, 10]``, one output all zero, one with an outlier."""
    matrix = np.random.default_rng(0).standard_normal((64, 10)).astype(np.float32)
    matrix[:, 3] = 0
    matrix[5, 4] = 40
    return matrix


def test_channel_codes_round_to_half_a_step(weight: np.ndarray) -> None:
    quantized = channel_codes(weight)
    assert quantized.codes.dtype == np.int8 and quantized.codes.min() >= -127
    # Half a step is what rounding to nearest may cost; the rest is fp32 rounding of the product.
    assert (np.abs(quantized.weights() - weight) <= quantized.scales * (0.5 + 1e-5)).all()
    assert quantized.codes[5, 4] >= 120 and not quantized.codes[:, 3].any()


@pytest.mark.parametrize("num_inputs", [64, 63])
def test_channel_codes_use_all_that_no_kernel_clips(num_inputs: int) -> None:
    """Neighbours' sums stay within ±128, and each output has a code at ±127 or a pair that a finer scale would lift."""
    weight = np.random.default_rng(1).standard_normal((num_inputs, 500)).astype(np.float32)
    quantized = channel_codes(weight)
    codes = np.concatenate([quantized.codes.astype(int), np.zeros((num_inputs % 2, 500), int)])
    pairs = np.abs(codes[0::2] + codes[1::2])
    assert pairs.max() <= 128
    assert np.maximum(np.abs(codes).max(axis=0), pairs.max(axis=0)).min() >= 126


def clipped_product(codes_KN: np.ndarray) -> np.ndarray:
    """Every activation at 255, neighbours added as VPMADDUBSW adds them: in 16 bits, what does not fit clipped."""
    pairs = 255 * codes_KN[0::2].astype(np.int64) + 255 * codes_KN[1::2].astype(np.int64)
    return np.asarray(np.clip(pairs, -(2**15), 2**15 - 1).sum(axis=0))


def test_sums_of_16_bits_hold_every_pair_and_would_not_hold_plain_codes() -> None:
    weight = np.random.default_rng(2).standard_normal((768, 64)).astype(np.float32)
    codes = channel_codes(weight).codes
    assert np.array_equal(clipped_product(codes), 255 * codes.sum(axis=0, dtype=np.int64))
    plain = np.rint(weight / np.abs(weight).max(axis=0) * 127).astype(np.int8)
    assert not np.array_equal(clipped_product(plain), 255 * plain.sum(axis=0, dtype=np.int64))


def test_channel_codes_of_the_largest_weights_there_are() -> None:
    weight = np.full((2, 1), np.finfo(np.float32).max / 2, np.float32)
    assert np.allclose(channel_codes(weight).weights(), weight, rtol=0.02)


def test_the_integer_product_is_exact_for_the_largest_sums() -> None:
    """All activations at 255, through this processor's own kernel; where it has VNNI, nothing could be clipped."""
    weight = np.abs(np.random.default_rng(2).standard_normal((768, 64))).astype(np.float32)
    x = np.where(np.arange(768) % 97 == 0, 0, 1).astype(np.float32)[None]
    quantized = channel_codes(weight)
    names = [("codes", quantized.codes), ("scales", quantized.scales)]
    graph = helper.make_graph(
        [helper.make_node("DynamicQuantizeMatMul", ["x", "codes", "scales"], ["y"], domain="com.microsoft")],
        "one_product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 768])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64])],
        [numpy_helper.from_array(array, name) for name, array in names],
    )
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=domains, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = x.astype(np.float64) @ quantized.weights().astype(np.float64)
    assert np.abs(session.run(None, {"x": x})[0] / expected - 1).max() < 1e-5


@pytest.mark.parametrize("block_size", [32, 64])
def test_8_bit_blocks_round_to_half_a_step(weight: np.ndarray, block_size: int) -> None:
    quantized = block_codes(weight, bits=8, block_size=block_size)
    assert quantized.codes.shape == (10, 64 // block_size, block_size)
    step_KN = np.repeat(np.abs(quantized.scales), block_size, axis=1).T
    assert (np.abs(quantized.weights() - weight) <= step_KN * (0.5 + 1e-5)).all()


def test_4_bit_blocks_are_no_worse_than_without_the_search(weight: np.ndarray) -> None:
    quantized = block_codes(weight, bits=4, block_size=32)
    assert quantized.codes.shape == (10, 2, 16) and quantized.scales.shape == (10, 2)
    blocks = weight.T.reshape(10, 2, 32)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[..., None], -1)
    scale = np.where(largest == 0, 1, largest / -8)
    plain = (np.clip(np.rint(blocks / scale), -8, 7) * scale).reshape(10, 64).T
    found = ((quantized.weights() - weight) ** 2).reshape(2, 32, 10).sum(axis=1)
    assert (found <= ((plain - weight) ** 2).reshape(2, 32, 10).sum(axis=1) + 1e-6).all()
    assert found.sum() < ((plain - weight) ** 2).sum()


def test_4_bit_codes_are_packed_low_half_first() -> None:
    weight = np.zeros((32, 1), np.float32)
    weight[0], weight[1] = -8, 3  # the scale is 1, so codes are the weights + 8
    quantized = block_codes(weight, bits=4, block_size=32)
    assert quantized.scales.item() == 1.0
    assert quantized.codes[0, 0, 0] == 0 | 11 << 4
    assert np.array_equal(quantized.weights(), weight)


@pytest.mark.parametrize(("bits", "block_size", "text"), [(4, 48, "not a multiple"), (5, 32, "5 bits")])
def test_what_cannot_be_coded(weight: np.ndarray, bits: int, block_size: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        block_codes(weight, bits=bits, block_size=block_size)
