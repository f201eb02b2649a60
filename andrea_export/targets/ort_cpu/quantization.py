"""Weights as integers: how a matrix becomes codes and scales, how those are packed, and how they are read back.

Pure numpy, no graph. Symmetric throughout: no zero point to multiply by, and 0 stays exactly 0. Matrices are
``[K, N]``, as they are multiplied: K summed over, N outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from andrea_export.operators.linear import LARGEST_ACTIVATION

Floats = npt.NDArray[np.float32]

# plugins/cpu/linear.h: outputs that lie together, the k of one output that do, and what K is filled up to.
_TILE, _GROUP, _PADDED_TO = 16, 4, 32

# Scales tried for a 4-bit block, as shares of the one that reaches its largest weight. A smaller scale clips that one
# weight and rounds all others more finely.
_SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)
_NUM_FITS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Codes:
    """A matrix as integers.

    ``codes`` int8 ``[K, N]``: −127 … 127 at 8 bits, −8 … 7 at 4. ``scales`` ``[blocks, N]``: one an output at 8 bits,
    one for every K / blocks of its weights at 4. w ≈ code · scale.
    """

    codes: npt.NDArray[np.int8]
    scales: Floats
    bits: int

    def weights(self) -> Floats:
        """The matrix ``[K, N]`` these codes stand for."""
        k, n = self.codes.shape
        blocks = self.codes.astype(np.float32).reshape(len(self.scales), -1, n)
        return (blocks * self.scales[:, None]).reshape(k, n)

    def packed(self) -> tuple[npt.NDArray[np.int8] | npt.NDArray[np.uint8], Floats]:
        """Codes and scales in the order of ``plugins/cpu/linear.h``: filled up with zeros to whole tiles and groups.

        8 bits: int8 ``[N / 16, K / 4, 16, 4]``, scales ``[N]``. 4 bits: uint8 ``[N / 16, K / 8, 16, 4]``, two codes a
        byte, that of k + 4 in the high half, each plus 8; scales ``[blocks, N]``.
        """
        k, n = self.codes.shape
        tail = -n % _TILE
        codes = np.pad(self.codes, ((0, -k % _PADDED_TO), (0, tail)))
        scales = np.pad(self.scales, ((0, 0), (0, tail)))
        groups = codes.reshape(-1, _GROUP, codes.shape[1] // _TILE, _TILE).transpose(2, 0, 3, 1)
        if self.bits == 8:
            return np.ascontiguousarray(groups), scales[0]
        nibbles = (groups + 8).astype(np.uint8)
        return np.ascontiguousarray(nibbles[:, 0::2] | nibbles[:, 1::2] << 4), scales

    @property
    def largest_activation(self) -> int:
        """To which a row of activations may be rounded: 14 bits, or less where an output's sum could leave int32."""
        if self.bits == 4:  # a sum is a block's: 8191 · 8 · 256 fits
            return LARGEST_ACTIVATION
        most = int(np.abs(self.codes.astype(np.int32)).sum(axis=0).max(initial=1))
        return min(LARGEST_ACTIVATION, (2**31 - 1) // max(most, 1))


def widest_block(k: int) -> int:
    """The widest block that divides K: 128, 64 or 32. Raises ValueError where none does."""
    for block_size in (128, 64, 32):
        if k % block_size == 0:
            return block_size
    raise ValueError(f"{k} rows are not a multiple of 32, the narrowest block")


def channel_codes(weight_KN: Floats) -> Codes:
    """8-bit codes, one scale an output."""
    scales = _nonzero(np.abs(weight_KN).max(axis=0) / np.float32(127))
    return Codes(codes=np.rint(weight_KN / scales).astype(np.int8), scales=scales[None], bits=8)


def block_codes(weight_KN: Floats, *, block_size: int) -> Codes:
    """4-bit codes. Raises ValueError where K is not a multiple of ``block_size``.

    The scale of each block is the one of ``_SHARES`` with the least squared error; its sign puts the largest weight at
    −8, the one code without a counterpart. Then codes and scale are fitted to each other in turn (least squares), as
    long as the error falls.
    """
    k, n = weight_KN.shape
    if k % block_size:
        raise ValueError(f"{k} rows are not a multiple of the block size {block_size}")
    blocks = weight_KN.reshape(k // block_size, block_size, n)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)[:, 0]
    full = _nonzero(largest / np.float32(-8))
    best = full, np.zeros_like(blocks), np.full(full.shape, np.inf, np.float32)
    for share in _SHARES:
        best = _better(blocks, full * np.float32(share), best)
    for _ in range(_NUM_FITS):
        _, codes, _ = best
        squares = np.square(codes).sum(axis=1)
        best = _better(blocks, _nonzero((codes * blocks).sum(axis=1) / np.maximum(squares, 1)), best)
    scales, codes, _ = best
    return Codes(codes=codes.astype(np.int8).reshape(k, n), scales=scales, bits=4)


_Fit = tuple[Floats, Floats, Floats]
"""Scales, codes and squared errors of every block."""


def _better(blocks: Floats, scales: Floats, best: _Fit) -> _Fit:
    """The best fit with these scales where they round a block with less error."""
    codes = np.clip(np.rint(blocks / scales[:, None]), -8, 7)
    error = np.square(codes * scales[:, None] - blocks).sum(axis=1)
    better = error < best[2]
    return (
        np.where(better, scales, best[0]),
        np.where(better[:, None], codes, best[1]),
        np.where(better, error, best[2]),
    )


def _nonzero(scales: Floats) -> Floats:
    """The scales, 1 where all weights are 0 (any scale does) or where it would be too small to divide by."""
    usable: Floats = np.where(np.abs(scales) < np.finfo(np.float32).tiny, np.float32(1), scales)
    return usable
