"""The reference, quantised in torch: the same codes, the same rounding of activations, torch's own arithmetic.

It shows the error that a precision makes by its nature; from it the budgets of the quantised graphs are derived, as
those of fp16 are from torch in fp16.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from andrea_export.targets.ort_cpu.quantization import Codes, block_codes, channel_codes, widest_block

ModuleT = TypeVar("ModuleT", bound=torch.nn.Module)


def quantized_part(part: ModuleT, path: str, kinds: Mapping[str, str], *, int4_block: int) -> ModuleT:
    """A copy whose linear layers, embedding and head are rounded as an ``ort-cpu`` graph rounds them.

    ``path``: where the part is in the model. ``kinds``: module path → fp32, int8 or int4. The tied matrix is 8 bits, a
    scale a token; attention is fp16.
    """
    quantized = copy.deepcopy(part)
    for inside, module in quantized.named_modules():
        name = ".".join(filter(None, (path, inside)))
        kind = kinds.get(name, "fp32")
        if kind != "fp32":
            linear: Any = module
            array = linear.weight.numpy()
            block = min(int4_block, widest_block(len(array))) if kind == "int4" else 0
            codes = block_codes(array, block_size=block) if block else channel_codes(array)
            linear.weight.copy_(torch.from_numpy(codes.weights()))
            linear.register_forward_pre_hook(partial(_round_input, codes.largest_activation))
        elif name == "token_embed":
            tied: torch.Tensor = module.weight
            tied.copy_(torch.from_numpy(_token_codes(tied).weights().T.copy()))
        elif name == "head":  # which is given its matrix: the embedding's, already rounded, or its own
            module.register_forward_pre_hook(_round_head)
        if name.endswith(("attn.qkv", "attn.context")):  # attention takes and gives fp16
            module.register_forward_hook(lambda _module, _inputs, output: output.half().to(output.dtype))
    return quantized


def _token_codes(weight_VC: torch.Tensor) -> Codes:
    return channel_codes(np.ascontiguousarray(weight_VC.detach().numpy().T))


def _round_head(_module: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    x, weight_VC = inputs
    codes = _token_codes(weight_VC)
    return _rounded(x, codes.largest_activation), torch.from_numpy(codes.weights().T.copy())


def _round_input(largest: int, _module: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (_rounded(inputs[0], largest), *inputs[1:])


def _rounded(x: torch.Tensor, largest: int) -> torch.Tensor:
    """x with each row rounded to −largest … largest, its largest value at the end."""
    scale = x.abs().amax(dim=-1, keepdim=True) / largest
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    return (x / scale).round() * scale
