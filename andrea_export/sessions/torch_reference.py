"""The reference: the torch model behind the same Session protocol as everything it is compared with.

A run returns the graph outputs and, on request, every layer, under the names of ``core.names.layer_names``. fp64 is the
truth that errors are measured against; fp32, TF32, fp16 and bf16 show the error that torch itself makes, from which
budgets are derived.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from andrea_export.core.dtypes import DTYPES
from andrea_export.core.errors import RunError, first_line
from andrea_export.core.names import graph_outputs, present_names
from andrea_export.core.precision import HALF_MODULES, PRECISIONS
from andrea_export.sessions.base import Feeds, Session
from andrea_model.model import Andrea, Block, Context, Head, Linear

ModuleT = TypeVar("ModuleT", bound=torch.nn.Module)


class TorchSession(Session):
    """Runs the reference model in one precision; ``layers`` are returned beside the graph outputs.

    fp64 and fp32 convert the whole model; tf32 is fp32 with rounded operands (``in_tf32``). fp16 and bf16 follow
    the engines' mixed-precision rule (``precision.HALF_MODULES`` in the half type, all else fp32).
    """

    def __init__(self, model: Andrea, *, precision: str = "fp32", layers: Sequence[str] = ()) -> None:
        self.name = f"torch-{precision}"
        self.config = model.config
        self.layers = tuple(layers)
        self.output_names = tuple(spec.name for spec in graph_outputs(model.config))
        self._model = converted(model, precision)
        self._cache_dtype = cache_dtype(precision)

    def run(self, feeds: Feeds) -> dict[str, npt.NDArray[Any]]:
        """Every output and every requested layer. Raises: RunError for inputs the model cannot take."""
        config = self.config
        past = [
            tuple(
                torch.from_numpy(np.asarray(feeds[f"past_key_values.{index}.{part}"], np.float64)).to(self._cache_dtype)
                for part in ("key", "value")
            )
            for index in range(config.n_layer)
        ]
        layers: dict[str, Tensor] = {}
        try:
            with torch.inference_mode(), recorded(self._model, self.layers, layers):
                logits, present = self._model(
                    torch.from_numpy(feeds["input_ids"]),
                    torch.from_numpy(feeds["attention_mask"]),
                    torch.from_numpy(feeds["position_ids"]),
                    past,
                )
        except (IndexError, RuntimeError, ValueError) as error:
            raise RunError(f"torch cannot run these inputs: {first_line(error)}") from error
        found = {name: array_from_torch(value) for name, value in (*layers.items(), ("logits", logits))}
        for index, (key, value) in enumerate(present):
            found.update(zip(present_names(index), (array_from_torch(key), array_from_torch(value)), strict=True))
        return found

    def close(self) -> None:
        """Releases the converted model."""
        del self._model


@contextmanager
def recorded(
    module: torch.nn.Module, names: Sequence[str], found: dict[str, Tensor], *, prefix: str = ""
) -> Iterator[None]:
    """While it is entered, every part of the module whose path, after ``prefix``, is named puts its output there."""
    parts = {f"{prefix}{path}": part for path, part in module.named_modules()}

    def record(name: str) -> Any:
        def hook(_module: torch.nn.Module, _inputs: Any, output: Tensor) -> None:
            found[name] = output

        return hook

    handles = [parts[name].register_forward_hook(record(name)) for name in names if name in parts]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def converted(module: ModuleT, precision: str) -> ModuleT:
    """A model, a block or a part outside the blocks, computing in one precision; for fp32 the module itself.

    fp16 and bf16 follow the engines' rule: in a block, HALF_MODULES compute in the half type; all else is fp32.
    """
    if precision == "fp32":
        return module
    if precision == "tf32":
        return in_tf32(module)
    copied = copy.deepcopy(module)
    row = PRECISIONS[precision]
    if row.compute_dtype == row.rest_dtype:
        return copied.to(cache_dtype(precision))
    for block in [part for part in copied.modules() if isinstance(part, Block)]:
        _make_mixed(block, cache_dtype(precision))
    return copied


def cache_dtype(precision: str) -> torch.dtype:
    """The type of the past and present keys and values in one precision."""
    dtype: torch.dtype = getattr(torch, DTYPES[PRECISIONS[precision].cache_dtype].torch)
    return dtype


def _make_mixed(block: Block, half: torch.dtype) -> None:
    """HALF_MODULES of the block compute in the half type from now on, everything else in fp32."""

    def cast_to(dtype: torch.dtype) -> Any:
        def hook(_module: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(
                value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
                for value in inputs
            )

        return hook

    modules = dict(block.named_modules())
    for name in HALF_MODULES:
        # On every module below as well, so that a layer called by itself is given the same types as in the block.
        for part in modules[name].modules():
            part.register_forward_pre_hook(cast_to(half))
        modules[name].to(half)
    for name in ("attn_residual", "mlp_residual"):
        modules[name].register_forward_pre_hook(cast_to(torch.float32))


def array_from_torch(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The tensor's values as numpy, without a copy where they lie in one piece."""
    if tensor.dtype == torch.bfloat16:  # numpy has no bf16 of its own; the bits are the same
        return tensor.contiguous().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


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
