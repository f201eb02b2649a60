"""The reference, quantised in torch: the same codes, the same rounding of activations, torch's own arithmetic.

It shows the error that a precision makes by its nature; from it the budgets of the quantised graphs are derived, as
those of fp16 are from torch in fp16.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import Any, TypeVar

import torch

from andrea_export.targets.ort_cpu.quantization import block_codes, channel_codes, widest_block

ModuleT = TypeVar("ModuleT", bound=torch.nn.Module)
RoundsActivations = Callable[[torch.Tensor], torch.Tensor]


def quantized_part(
    part: ModuleT,
    path: str,
    kinds: Mapping[str, str],
    *,
    int4_block: int,
    blockwise: bool,
    scaled_rows: Container[str] = (),
) -> ModuleT:
    """A copy whose linear layers, embedding and head are rounded as an ``ort-cpu`` graph rounds them.

    ``path``: where the part is in the model. ``kinds``: module path → fp32, int8 or int4. ``blockwise``: an int8 layer
    is MatMulNBits'; else it is DynamicQuantizeMatMul's, and with rows of one size if it is among ``scaled_rows``. The
    tied matrix is 8 bits, block-wise; attention is fp16.
    """
    quantized = copy.deepcopy(part)
    for inside, module in quantized.named_modules():
        name = ".".join(filter(None, (path, inside)))
        kind = kinds.get(name, "fp32")
        if kind != "fp32":
            by_block = kind == "int4" or blockwise
            widest = int4_block if kind == "int4" else 128
            rounding = _quantize(module, bits=4 if kind == "int4" else 8, widest=widest if by_block else None)
            if not by_block and name in scaled_rows:
                rounding = _uint8_rows
            module.register_forward_pre_hook(_hook(rounding))
        elif name == "token_embed":
            tied: torch.Tensor = module.weight
            codes = block_codes(tied.numpy().T, bits=8, block_size=widest_block(tied.shape[1]))
            tied.copy_(torch.from_numpy(codes.weights().T.copy()))
        elif name == "head":
            module.register_forward_pre_hook(_hook(lambda x: _int8_blocks(x, widest_block(x.shape[-1]))))
        if name.endswith(("attn.qkv", "attn.context")):  # attention takes and gives fp16
            module.register_forward_hook(lambda _module, _inputs, output: output.half().to(output.dtype))
    return quantized


def _quantize(linear: Any, *, bits: int, widest: int | None) -> RoundsActivations:
    """Rounds a linear layer's weight, in blocks unless ``widest`` is None; returns how its activations are rounded."""
    array = linear.weight.numpy()
    if widest is None:
        linear.weight.copy_(torch.from_numpy(channel_codes(array).weights()))
        return _uint8
    block_size = min(widest, widest_block(len(array)))
    linear.weight.copy_(torch.from_numpy(block_codes(array, bits=bits, block_size=block_size).weights()))
    return partial(_int8_blocks, block_size=block_size)


def _hook(rounding: RoundsActivations) -> Any:
    return lambda _module, inputs: (rounding(inputs[0]), *inputs[1:])


def _uint8(x: torch.Tensor) -> torch.Tensor:
    """x rounded to 256 levels between its smallest and its largest value, 0 among them.

    Source: https://onnx.ai/onnx/operators/onnx__DynamicQuantizeLinear.html
    """
    low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
    scale = (high - low) / 255
    if scale == 0:
        return x
    zero = (-low / scale).round()
    return (((x / scale).round() + zero).clamp(0, 255) - zero) * scale


def _uint8_rows(x: torch.Tensor) -> torch.Tensor:
    """x rounded as ``_uint8`` does after each row was divided by its largest value. Source: ``ScaledRows``."""
    largest = x.abs().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    return _uint8(x / largest) * largest


def _int8_blocks(x: torch.Tensor, block_size: int) -> torch.Tensor:
    """x rounded to −127 … 127 in every block of a row, the block's largest value at the end."""
    blocks = x.reshape(*x.shape[:-1], -1, block_size)
    scale = blocks.abs().amax(dim=-1, keepdim=True) / 127
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    return ((blocks / scale).round() * scale).flatten(-2)
