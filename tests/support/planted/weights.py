"""Faults in what the file stores: weights, biases, gains."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import onnx

from support.planted.edit import Array, set_weight, weight

_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")


def scaled(model: onnx.ModelProto, layer: str, size: float) -> None:
    """The whole matrix times ``size``."""
    _change(model, layer, lambda w: w * size)


def element_added(model: onnx.ModelProto, layer: str, size: float) -> None:
    """``size`` added to one element."""

    def change(w: Array) -> Array:
        w[w.shape[0] // 3, w.shape[1] // 5] += size
        return w

    _change(model, layer, change)


def rounded_to_bf16(model: onnx.ModelProto, layer: str, size: float) -> None:
    """Every element rounded to eight bits."""
    _change(model, layer, lambda w: w.astype(ml_dtypes.bfloat16))


def quantised_per_tensor(model: onnx.ModelProto, layer: str, size: float) -> None:
    """Rounded to ``size`` bits with one scale: what an outlier spoils."""
    _change(model, layer, lambda w: _quantised(w, int(size), np.abs(w).max()))


def quantised_per_column(model: onnx.ModelProto, layer: str, size: float) -> None:
    """Rounded to ``size`` bits with one scale for each output."""
    _change(model, layer, lambda w: _quantised(w, int(size), np.abs(w).max(axis=0, keepdims=True)))


def transposed(model: onnx.ModelProto, layer: str, size: float) -> None:
    """A square matrix the other way round."""
    _change(model, layer, lambda w: w.T)


def rows_swapped(model: onnx.ModelProto, layer: str, size: float) -> None:
    """Two inputs exchanged."""
    _change(model, layer, lambda w: w[_two_swapped(w.shape[0])])


def columns_swapped(model: onnx.ModelProto, layer: str, size: float) -> None:
    """Two outputs exchanged, their biases left where they were."""
    _change(model, layer, lambda w: w[:, _two_swapped(w.shape[1])])


def row_zeroed(model: onnx.ModelProto, layer: str, size: float) -> None:
    """One input ignored."""

    def change(w: Array) -> Array:
        w[w.shape[0] // 2] = 0.0
        return w

    _change(model, layer, change)


def sign_lost(model: onnx.ModelProto, layer: str, size: float) -> None:
    """Absolute values."""
    _change(model, layer, np.abs)


def outliers_clipped(model: onnx.ModelProto, layer: str, size: float) -> None:
    """What lies beyond three standard deviations, cut off there."""
    _change(model, layer, lambda w: np.clip(w, -3 * w.std(), 3 * w.std()))


def made_nan(model: onnx.ModelProto, layer: str, size: float) -> None:
    """One element not a number."""

    def change(w: Array) -> Array:
        w[0, 0] = np.nan
        return w

    _change(model, layer, change)


def of_another_block(model: onnx.ModelProto, layer: str, size: float) -> None:
    """The matrix of the block after this one, or of the one before where it is the last."""
    match = _BLOCK.fullmatch(layer)
    assert match is not None
    names = {tensor.name for tensor in model.graph.initializer}
    after, before = (f"blocks.{int(match[1]) + step}.{match[2]}.weight" for step in (1, -1))
    set_weight(model, f"{layer}.weight", weight(model, after if after in names else before))


def bias_dropped(model: onnx.ModelProto, layer: str, size: float) -> None:
    """All zeros."""
    set_weight(model, f"{layer}.bias", np.zeros_like(weight(model, f"{layer}.bias")))


def bias_shifted(model: onnx.ModelProto, layer: str, size: float) -> None:
    """``size`` added to all of it."""
    set_weight(model, f"{layer}.bias", weight(model, f"{layer}.bias") + size)


def gain_dropped(model: onnx.ModelProto, layer: str, size: float) -> None:
    """All ones."""
    set_weight(model, f"{layer}.weight", np.ones_like(weight(model, f"{layer}.weight")))


def gain_of_other_norm(model: onnx.ModelProto, layer: str, size: float) -> None:
    """The block's second norm's gains in its first."""
    set_weight(model, f"{layer}.weight", weight(model, f"{layer.replace('ln_1', 'ln_2')}.weight"))


def _change(model: onnx.ModelProto, layer: str, change: object) -> None:
    assert callable(change)
    name = f"{layer}.weight"
    set_weight(model, name, np.asarray(change(weight(model, name))))


def _quantised(w: Array, num_bits: int, largest: Array) -> Array:
    step = largest / (2 ** (num_bits - 1) - 1)
    return np.asarray(np.round(w / step) * step)


def _two_swapped(length: int) -> Array:
    order = np.arange(length)
    order[[1, length // 2]] = order[[length // 2, 1]]
    return order
