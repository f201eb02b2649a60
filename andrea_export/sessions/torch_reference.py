"""The reference: the torch model behind the same Session protocol as everything it is compared with.

A run returns the graph outputs and, on request, every layer, under the names of ``core.names.layer_names``. fp64 is the
truth that errors are measured against; fp32, TF32, fp16 and bf16 show the error that torch itself makes, from which
budgets are derived.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch

from andrea_export.core.dtypes import DTYPES
from andrea_export.core.errors import RunError, first_line
from andrea_export.core.names import present_names
from andrea_export.core.precision import HALF_MODULES, PRECISIONS
from andrea_export.sessions.base import Feeds
from andrea_export.sessions.torch_tf32 import in_tf32
from andrea_model.model import Andrea, Block

ModuleT = TypeVar("ModuleT", bound=torch.nn.Module)


class TorchSession:
    """Runs the reference model in one precision; ``layers`` are returned beside the graph outputs.

    fp64 and fp32 convert the whole model; tf32 is fp32 with rounded operands (``torch_tf32``). fp16 and bf16 follow
    the engines' mixed-precision rule (``precision.HALF_MODULES`` in the half type, all else fp32).
    """

    def __init__(self, model: Andrea, *, precision: str = "fp32", layers: Sequence[str] = ()) -> None:
        self.name = f"torch-{precision}"
        self.config = model.config
        self.layers = tuple(layers)
        self.output_names = (
            "logits",
            *(name for index in range(model.config.n_layer) for name in present_names(index)),
        )
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
        found: dict[str, npt.NDArray[Any]] = {}
        try:
            with torch.inference_mode(), _hooked(self._model, self.layers, found):
                logits, present = self._model(
                    torch.from_numpy(feeds["input_ids"]),
                    torch.from_numpy(feeds["attention_mask"]),
                    torch.from_numpy(feeds["position_ids"]),
                    past,
                )
        except (IndexError, RuntimeError, ValueError) as error:
            raise RunError(f"torch cannot run these inputs: {first_line(error)}") from error
        found["logits"] = array_from_torch(logits)
        for index, (key, value) in enumerate(present):
            found.update(zip(present_names(index), (array_from_torch(key), array_from_torch(value)), strict=True))
        return found

    def close(self) -> None:
        """Releases the converted model."""
        del self._model

    def __enter__(self) -> TorchSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def _hooked(model: Andrea, layers: Sequence[str], found: dict[str, npt.NDArray[Any]]) -> Iterator[None]:
    """Records the output of every named module while the block runs."""
    modules = dict(model.named_modules())

    def record(name: str) -> Any:
        def hook(_module: torch.nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            found[name] = array_from_torch(output)

        return hook

    handles = [modules[name].register_forward_hook(record(name)) for name in layers if name in modules]
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
