"""Weights as integers: how a matrix becomes codes and scales, and how it is read back. Pure numpy, no graph.

Symmetric throughout: no zero point to multiply by, and 0 stays exactly 0. Matrices are ``[K, N]``, as they are
multiplied: K summed over, N outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

# Scales tried for a 4-bit block, as shares of the one that reaches its largest weight. A smaller scale clips that one
# weight and rounds all others more finely.
_SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelCodes:
    """int8 codes ``[K, N]`` and one scale for each output ``[N]``: w ≈ codes · scales."""

    codes: npt.NDArray[np.int8]
    scales: Floats

    def weights(self) -> Floats:
        """The matrix these codes stand for."""
        return self.codes.astype(np.float32) * self.scales


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCodes:
    """Codes of one output after another, a scale for every ``block_size`` of its K weights.

    ``codes`` ``[N, K / block_size, block_size · bits / 8]`` uint8, two 4-bit codes a byte (the first in the low half);
    ``scales`` ``[N, K / block_size]``. w ≈ (code − 2^(bits − 1)) · scale. Source: com.microsoft.MatMulNBits,
    https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits
    """

    codes: npt.NDArray[np.uint8]
    scales: Floats
    bits: int

    def weights(self) -> Floats:
        """The matrix ``[K, N]`` these codes stand for."""
        codes = self.codes
        if self.bits == 4:
            codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:2], -1)
        signed = codes.astype(np.float32) - 2.0 ** (self.bits - 1)
        return np.ascontiguousarray((signed * self.scales[..., None]).reshape(len(codes), -1).T)


def widest_block(k: int) -> int:
    """The widest block the kernels take that divides K: 128, 64 or 32. Raises ValueError where none does.

    At 8 bits a wider block costs next to no accuracy, and its kernel is the faster one
    (docs/measurements/cpu-runtime.md).
    """
    for block_size in (128, 64, 32):
        if k % block_size == 0:
            return block_size
    raise ValueError(f"{k} rows are not a multiple of 32, the narrowest block")


def channel_codes(weight_KN: Floats) -> ChannelCodes:
    """int8 codes in −127 … 127, the finest whose sums no processor's kernel clips.

    A processor with AVX2 and no VNNI multiplies pairs of neighbouring codes with two uint8 activations and adds them in
    16 bits, where what exceeds 2¹⁵ − 1 is clipped in silence: 255 · 127 + 255 · 127 does. With every pair's sum within
    ±128 nothing can, for 255 · 128 < 2¹⁵. The usual remedy is 7 bits for every weight; this one costs an output only
    what its own largest pair asks for. docs/measurements/cpu-runtime.md has both, measured. Source:
    VPMADDUBSW, Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.
    """
    k, n = weight_KN.shape
    padded = np.concatenate([weight_KN, np.zeros((k % 2, n), np.float32)]) / np.float32(127)
    # Two codes, each rounded by at most a half, may be off by 1 together: 127 for a pair leaves 128.
    scales = np.maximum(np.abs(padded).max(axis=0), np.abs(padded[0::2] + padded[1::2]).max(axis=0))
    scales = _nonzero(scales.astype(np.float32))
    return ChannelCodes(codes=np.rint(weight_KN / scales).astype(np.int8), scales=scales)


def block_codes(weight_KN: Floats, *, bits: int, block_size: int) -> BlockCodes:
    """8-bit or 4-bit codes. Raises ValueError where K is not a multiple of ``block_size``.

    At 4 bits the scale of each block is the one of ``_SHARES`` with the least squared error; its sign puts the largest
    weight at −8, the one code without a counterpart.
    """
    k, n = weight_KN.shape
    if k % block_size:
        raise ValueError(f"{k} rows are not a multiple of the block size {block_size}")
    blocks = np.ascontiguousarray(weight_KN.T).reshape(n, k // block_size, block_size)
    if bits == 8:
        reached = np.abs(blocks).max(axis=-1) / np.float32(127)
        scales = _nonzero(reached)
        codes = np.rint(blocks / scales[..., None]) + 128
        return BlockCodes(codes=codes.astype(np.uint8), scales=_zero_where_none(scales, reached), bits=8)
    if bits != 4:
        raise ValueError(f"{bits} bits, expected 4 or 8")
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1)[..., None], axis=-1)[..., 0]
    reached = largest / np.float32(-8)
    full = _nonzero(reached)
    best_scales, best_error = full, np.full(full.shape, np.inf, np.float32)
    for share in _SHARES:
        scales = full * np.float32(share)
        error = np.square(_codes_4(blocks, scales) * scales[..., None] - blocks).sum(axis=-1)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        best_scales = np.where(better, scales, best_scales)
    codes = (_codes_4(blocks, best_scales) + 8).astype(np.uint8)
    packed = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return BlockCodes(codes=np.ascontiguousarray(packed), scales=_zero_where_none(best_scales, reached), bits=4)


def _codes_4(blocks: Floats, scales: Floats) -> Floats:
    """Signed codes −8 … 7, as floats."""
    codes: Floats = np.rint(blocks / scales[..., None])
    np.clip(codes, -8, 7, out=codes)
    return codes


def _nonzero(scales: Floats) -> Floats:
    """The scales, 1 where all weights are 0 (any scale does) or where it would be too small to divide by."""
    usable: Floats = np.where(_is_none(scales), np.float32(1), scales)
    return usable


def _zero_where_none(scales: Floats, reached: Floats) -> Floats:
    """0 for a block of zeros: MatMulNBits subtracts two rounded sums, and what is left of them is times the scale."""
    zeroed: Floats = np.where(_is_none(reached), np.float32(0), scales)
    return zeroed


def _is_none(scales: Floats) -> npt.NDArray[np.bool_]:
    none: npt.NDArray[np.bool_] = np.abs(scales) < np.finfo(np.float32).tiny
    return none
