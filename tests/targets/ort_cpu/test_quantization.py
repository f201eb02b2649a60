"""Codes and scales: exact bounds on what rounding may cost, and the layout the operators read."""

from __future__ import annotations

import numpy as np
import pytest

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


@pytest.mark.parametrize(("k", "n"), [(32, 16), (768, 48), (33, 17), (1, 1)])
def test_8_bit_codes_are_packed_in_tiles_of_16_outputs_and_groups_of_4(k: int, n: int) -> None:
    quantized = channel_codes(np.random.default_rng(1).standard_normal((k, n)).astype(np.float32))
    packed, scales = quantized.packed()
    assert packed.shape == (-(-n // 16), -(-k // 32) * 8, 16, 4) and packed.dtype == np.int8
    for row in (0, k // 2, k - 1):
        for column in (0, n - 1):
            assert packed[column // 16, row // 4, column % 16, row % 4] == quantized.codes[row, column]
    assert np.count_nonzero(packed) == np.count_nonzero(quantized.codes)  # the filling is zeros
    assert np.array_equal(scales[:n], quantized.scales[0]) and not scales[n:].any()


@pytest.mark.parametrize(("k", "n", "block"), [(32, 16, 32), (256, 20, 128)])
def test_4_bit_codes_are_packed_two_a_byte(k: int, n: int, block: int) -> None:
    quantized = block_codes(np.random.default_rng(1).standard_normal((k, n)).astype(np.float32), block_size=block)
    packed, scales = quantized.packed()
    assert packed.shape == (-(-n // 16), k // 8, 16, 4) and packed.dtype == np.uint8
    assert scales.shape == (k // block, -(-n // 16) * 16)
    for row in (0, 3, 4, 7, k - 1):
        byte = packed[(n - 1) // 16, row // 8, (n - 1) % 16, row % 4]
        assert (byte >> 4 if row % 8 > 3 else byte & 15) == quantized.codes[row, n - 1] + 8


def test_activations_are_as_fine_as_no_sum_can_leave_32_bits() -> None:
    assert channel_codes(np.ones((768, 2), np.float32)).largest_activation == 8191
    widest = channel_codes(np.ones((6144, 2), np.float32)).largest_activation  # ANDREA-480M's, every code at 127
    assert widest < 8191 and widest * 127 * 6144 < 2**31 <= (widest + 1) * 127 * 6144


def test_channel_codes_of_the_largest_weights_there_are() -> None:
    weight = np.full((2, 1), np.finfo(np.float32).max / 2, np.float32)
    assert np.allclose(channel_codes(weight).weights(), weight, rtol=0.02)


def test_4_bit_blocks_are_no_worse_than_without_the_search(weight: np.ndarray) -> None:
    quantized = block_codes(weight, block_size=32)
    assert quantized.codes.shape == (64, 10) and quantized.scales.shape == (2, 10)
    blocks = weight.reshape(2, 32, 10)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1)
    scale = np.where(largest == 0, 1, largest / -8)
    plain = (np.clip(np.rint(blocks / scale), -8, 7) * scale).reshape(64, 10)
    found = ((quantized.weights() - weight) ** 2).reshape(2, 32, 10).sum(axis=1)
    assert (found <= ((plain - weight) ** 2).reshape(2, 32, 10).sum(axis=1) + 1e-6).all()
    assert found.sum() < ((plain - weight) ** 2).sum()


def test_what_cannot_be_coded(weight: np.ndarray) -> None:
    with pytest.raises(ValueError, match="not a multiple"):
        block_codes(weight, block_size=48)
