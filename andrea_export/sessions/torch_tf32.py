"""The reference in TF32, emulated on the CPU: every matrix product's operands rounded to it, sums and all else in fp32.

It shows the error that TF32 makes by its nature; from it the budgets of engines that may use TF32 are derived, as those
of fp16 are from torch in fp16.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from andrea_model.model import Context, Head, Linear

ModuleT = TypeVar("ModuleT", bound=torch.nn.Module)
Rounding = Callable[[Tensor], Tensor]

_DROPPED_BITS = 13  # of fp32's 23 explicit mantissa bits TF32 keeps 10


def rounded_to_tf32(x: Tensor) -> Tensor:
    """fp32 values rounded to 10 explicit mantissa bits, ties to even; NaN and infinities as they are.

    Source: https://developer.nvidia.com/blog/accelerating-ai-training-with-tf32-tensor-cores/ (8 exponent bits, 10
    mantissa bits; the tensor cores multiply such operands and add up in fp32).
    """
    bits = x.contiguous().view(torch.int32)
    half = (1 << (_DROPPED_BITS - 1)) - 1
    is_odd = (bits >> _DROPPED_BITS) & 1
    rounded = ((bits + half + is_odd) & -(1 << _DROPPED_BITS)).view(torch.float32)
    return torch.where(torch.isfinite(x), rounded, x)


def in_tf32(module: ModuleT, rounding: Rounding = rounded_to_tf32) -> ModuleT:
    """A copy whose linear layers, attention and head multiply operands that went through ``rounding``.

    Weights are rounded once, what is computed as it comes; biases, norms, softmax, GELU and the residual stream are
    fp32. ``rounding`` is another where somebody asks how far two ways to round are apart: TF32's is not specified.
    """
    copied = copy.deepcopy(module)

    def hook(_module: torch.nn.Module, operands: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(rounding(value) for value in operands)

    for part in copied.modules():
        if isinstance(part, Linear):
            part.weight.copy_(rounding(part.weight))
        if isinstance(part, Linear | Head):
            part.register_forward_pre_hook(hook)
        elif isinstance(part, Context):
            part.forward = _Attention(rounding)  # type: ignore[method-assign]
    return copied


class _Attention:
    """``Context.forward`` spelled out, so that both of its products have their operands rounded."""

    def __init__(self, rounding: Rounding) -> None:
        self._rounding = rounding

    def __call__(self, q_BHSD: Tensor, k_BHKD: Tensor, v_BHKD: Tensor, allowed_B1SK: Tensor) -> Tensor:
        rounding = self._rounding
        scores_BHSK = rounding(q_BHSD) @ rounding(k_BHKD).transpose(2, 3) / math.sqrt(q_BHSD.shape[-1])
        weights_BHSK = torch.softmax(scores_BHSK.masked_fill(~allowed_B1SK, -math.inf), dim=-1)
        context_BHSD: Tensor = rounding(weights_BHSK) @ rounding(v_BHKD)
        return context_BHSD.transpose(1, 2).flatten(2)
