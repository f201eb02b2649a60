"""The operators of ``plugins/cpu`` as ONNX functions: what a runtime without their library computes, piece by piece.

The packing that their inputs have is ``plugins/cpu/linear.h``'s; the bodies undo it, so that one file serves both ways.
"""

import functools
from dataclasses import dataclass

import onnx
import onnx.parser

DOMAIN = "com.andrea"
OPSET = 23
EMBED = "Embed8"
LARGEST_ACTIVATION = 8191
"""14 bits with a sign: two halves of 7 bits fit into the 8-bit dot products of any processor."""

_NORM = "h = LayerNormalization <axis = -1, epsilon: float = @epsilon> (x, gamma, beta)"
_ROUND = """
    levels = Constant <value_float: float = @largest_activation> ()
    last = Constant <value_ints = [-1]> ()
    tiny = Constant <value_float = 1e-30> ()
    one = Constant <value_float = 1.0> ()
    sizes = Abs (h)
    largest = ReduceMax <keepdims = 1> (sizes, last)
    is_zero = Less (largest, tiny)
    divisor = Where (is_zero, one, largest)
    inverse = Div (levels, divisor)
    scaled = Mul (h, inverse)
    q = Round (scaled)
    row_scale = Div (largest, levels)
    inputs = Shape <start = -1> (h)
    outputs = Shape (bias)
    zero = Constant <value_ints = [0]> ()
    zeros = Constant <value_ints = [0, 0]> ()
    first = Constant <value_ints = [0]> ()
    both = Constant <value_ints = [0, 1]> ()
    sizes_of_w = Concat <axis = 0> (inputs, outputs)"""
_WEIGHTS_8 = """
    floats = Cast <to = 1> (codes)
    unpacked = Transpose <perm = [1, 3, 0, 2]> (floats)
    padded = Flatten <axis = 2> (unpacked)
    w = Slice (padded, zeros, sizes_of_w, both)
    scale = Slice (scales, zero, outputs, first)
    sums = MatMul (q, w)
    unit = Mul (row_scale, scale)
    product = Mul (sums, unit)
    biased = Add (product, bias)"""
_WEIGHTS_4 = """
    low_bits = Constant <value = uint8 {15}> ()
    shift = Constant <value = uint8 {4}> ()
    eight = Constant <value_float = 8.0> ()
    halves = Constant <value_ints = [2]> ()
    rest = Constant <value_ints = [-1]> ()
    low = BitwiseAnd (codes, low_bits)
    high = BitShift <direction = "RIGHT"> (codes, shift)
    low_5 = Unsqueeze (low, halves)
    high_5 = Unsqueeze (high, halves)
    nibbles = Concat <axis = 2> (low_5, high_5)
    floats = Cast <to = 1> (nibbles)
    signed = Sub (floats, eight)
    unpacked = Transpose <perm = [1, 2, 4, 0, 3]> (signed)
    flat = Flatten <axis = 3> (unpacked)
    num_blocks = Shape <start = 0, end = 1> (scales)
    columns = Shape <start = 1, end = 2> (scales)
    in_blocks = Concat <axis = 0> (num_blocks, rest, columns)
    blocks = Reshape (flat, in_blocks)
    middle = Constant <value_ints = [1]> ()
    of_blocks = Unsqueeze (scales, middle)
    whole = Mul (blocks, of_blocks)
    padded = Flatten <axis = 2> (whole)
    w = Slice (padded, zeros, sizes_of_w, both)
    sums = MatMul (q, w)
    product = Mul (sums, row_scale)
    biased = Add (product, bias)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """One way a block uses a linear layer: with 4 or 8 bits, a norm before it, GELU or a residual sum after it."""

    bits: int
    norm: bool = False
    gelu: bool = False
    residual: bool = False

    @property
    def op_type(self) -> str:
        """The operator's name: ``NormLinear8Gelu`` for example."""
        return f"{'Norm' * self.norm}Linear{self.bits}{'Gelu' * self.gelu}{'Add' * self.residual}"

    @property
    def function(self) -> onnx.FunctionProto:
        """Its ONNX function. y = gelu(round(norm(x)) · W + bias) + residual, of which each part may be missing.

        Inputs: x ``[..., K]``, with a norm gamma and beta ``[K]``, the packed codes and their scales, bias ``[N]``,
        with a residual sum that, ``[..., N]``. Attributes: ``largest_activation``, to which each row is rounded, and
        with a norm ``epsilon``.
        """
        inputs = ["x", *(["gamma", "beta"] if self.norm else []), "codes", "scales", "bias"]
        attributes = ["largest_activation", *(["epsilon"] if self.norm else [])]
        body = [_NORM if self.norm else "h = Identity (x)", _ROUND, _WEIGHTS_8 if self.bits == 8 else _WEIGHTS_4]
        y = "biased"
        if self.gelu:
            body.append(f'active = Gelu <approximate = "tanh"> ({y})')
            y = "active"
        if self.residual:
            inputs.append("residual")
            body.append(f"summed = Add ({y}, residual)")
            y = "summed"
        return _parsed(self.op_type, attributes, inputs, "\n".join([*body, f"y = Identity ({y})"]))


@functools.cache
def embed_function() -> onnx.FunctionProto:
    """``Embed8``: the rows of a head's packed int8 codes that token ids ``[...]`` name, as floats ``[..., width]``."""
    body = """
    sixteen = Shape <start = 2, end = 3> (codes)
    rest = Constant <value_ints = [-1]> ()
    width_0 = Constant <value_int: int = @width> ()
    width_1 = Reshape (width_0, rest)
    zero = Constant <value_ints = [0]> ()
    last = Constant <value_ints = [-1]> ()
    tiled = Transpose <perm = [0, 2, 1, 3]> (codes)
    num_tiles = Shape <start = 0, end = 1> (codes)
    num_rows = Mul (num_tiles, sixteen)
    flat = Concat <axis = 0> (num_rows, rest)
    rows = Reshape (tiled, flat)
    row = Gather <axis = 0> (rows, ids)
    whole = Cast <to = 1> (row)
    cut = Slice (whole, zero, width_1, last)
    scale = Gather <axis = 0> (scales, ids)
    scale_1 = Unsqueeze (scale, last)
    y = Mul (cut, scale_1)"""
    return _parsed(EMBED, ["width"], ["ids", "codes", "scales"], body)


def _parsed(name: str, attributes: list[str], inputs: list[str], body: str) -> onnx.FunctionProto:
    return onnx.parser.parse_function(
        f'<domain: "{DOMAIN}", opset_import: ["" : {OPSET}]>\n'
        f"{name} <{', '.join(attributes)}> ({', '.join(inputs)}) => (y) {{\n{body}\n}}"
    )
