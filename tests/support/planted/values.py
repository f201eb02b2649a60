"""Faults in what a value is between two layers: rounded, clipped, scaled, or partly lost."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from support.planted.edit import change_value, constant, producer


def through_fp16(model: onnx.ModelProto, layer: str, size: float) -> None:
    """Stored in half precision and read back."""
    change_value(model, layer, ("Cast", (), {"to": TensorProto.FLOAT16}), ("Cast", (), {"to": TensorProto.FLOAT}))


def through_bf16(model: onnx.ModelProto, layer: str, size: float) -> None:
    """Stored in bf16 and read back."""
    change_value(model, layer, ("Cast", (), {"to": TensorProto.BFLOAT16}), ("Cast", (), {"to": TensorProto.FLOAT}))


def through_int8(model: onnx.ModelProto, layer: str, size: float) -> None:
    """Stored in eight bits with one scale, -4 to 4, and read back."""
    scale = constant(model, "scale", np.float32(4 / 127))
    zero = constant(model, "zero", np.int8(0))
    change_value(model, layer, ("QuantizeLinear", (scale, zero), {}), ("DequantizeLinear", (scale, zero), {}))


def overflowing_fp16(model: onnx.ModelProto, layer: str, size: float) -> None:
    """``size`` times as large in half precision, then made small again: infinite where it passed 65 504."""
    up, down = constant(model, "up", np.float32(size)), constant(model, "down", np.float32(1 / size))
    half, single = {"to": TensorProto.FLOAT16}, {"to": TensorProto.FLOAT}
    change_value(model, layer, ("Mul", (up,), {}), ("Cast", (), half), ("Cast", (), single), ("Mul", (down,), {}))


def clipped(model: onnx.ModelProto, layer: str, size: float) -> None:
    """Cut off at ± ``size``."""
    low, high = constant(model, "low", np.float32(-size)), constant(model, "high", np.float32(size))
    change_value(model, layer, ("Clip", (low, high), {}))


def scaled(model: onnx.ModelProto, layer: str, size: float) -> None:
    """Times ``size``."""
    change_value(model, layer, ("Mul", (constant(model, "factor", np.float32(size)),), {}))


def channel_shifted(model: onnx.ModelProto, layer: str, size: float) -> None:
    """``size`` added to one channel."""
    shift = np.zeros(_width(model, layer), np.float32)
    shift[len(shift) // 3] = size
    change_value(model, layer, ("Add", (constant(model, "shift", shift),), {}))


def channel_zeroed(model: onnx.ModelProto, layer: str, size: float) -> None:
    """One channel lost."""
    keep = np.ones(_width(model, layer), np.float32)
    keep[len(keep) // 3] = 0.0
    change_value(model, layer, ("Mul", (constant(model, "keep", keep),), {}))


def last_position_zeroed(model: onnx.ModelProto, layer: str, size: float) -> None:
    """The newest token's row lost: padded with zeros where it was."""
    axis = constant(model, "axis", np.array([1], np.int64))
    start = constant(model, "start", np.array([0], np.int64))
    end = constant(model, "end", np.array([-1], np.int64))
    pads = constant(model, "pads", np.array([0, 1], np.int64))
    zero = constant(model, "zero", np.float32(0))
    change_value(model, layer, ("Slice", (start, end, axis), {}), ("Pad", (pads, zero, axis), {}))


def _width(model: onnx.ModelProto, layer: str) -> int:
    """The number of channels, from the weight that the layer's last node reads."""
    node = producer(model, layer)
    sizes = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    if layer == "logits":
        return int(sizes["token_embed.weight"][0])
    known = [sizes[name][-1] for name in node.input if name in sizes]
    return int(known[0] if known else sizes["token_embed.weight"][1])
