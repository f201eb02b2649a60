"""The reference: the torch model behind the same Session protocol as everything it is compared with.

A run returns the graph outputs and, on request, every layer, under the names of ``specs.layer_names``. The precision
rows are those of the engines: fp64 is the truth that errors are measured against, fp32, fp16 and bf16 show the error
that torch itself makes, from which budgets are derived.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch

from andrea_export.backends.base import Feeds
from andrea_export.errors import RunError, first_line
from andrea_export.precision import HALF_MODULES
from andrea_export.specs import present_names
from andrea_model.model import Andrea

_WHOLE = {"fp64": torch.float64, "fp32": torch.float32}
_MIXED = {"fp16": torch.float16, "bf16": torch.bfloat16}


class TorchSession:
    """Runs the reference model in one precision; ``layers`` are returned beside the graph outputs.

    fp64 and fp32 convert the whole model. fp16 and bf16 follow the engines' mixed-precision rule
    (``precision.HALF_MODULES`` in the half type, all else fp32).
    """

    def __init__(self, model: Andrea, *, precision: str = "fp32", layers: Sequence[str] = ()) -> None:
        self.name = f"torch-{precision}"
        self.config = model.config
        self.layers = tuple(layers)
        self.output_names = (
            "logits",
            *(name for index in range(model.config.n_layer) for name in present_names(index)),
        )
        if precision == "fp32":
            self._model = model
        elif precision in _WHOLE:
            self._model = copy.deepcopy(model).to(_WHOLE[precision])
        else:
            self._model = _mixed(model, _MIXED[precision])
        self._cache_dtype = _WHOLE.get(precision) or _MIXED[precision]

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
        found["logits"] = _array(logits)
        for index, (key, value) in enumerate(present):
            found.update(zip(present_names(index), (_array(key), _array(value)), strict=True))
        return found

    def close(self) -> None:
        """Releases the converted model."""
        del self._model

    def __enter__(self) -> TorchSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def trace_layers(
    model: Andrea, feeds: Feeds, layers: Sequence[str], precision: str = "fp32"
) -> dict[str, npt.NDArray[Any]]:
    """The named layers (and the graph outputs) of one run of the reference."""
    with TorchSession(model, precision=precision, layers=layers) as session:
        return session.run(feeds)


@contextmanager
def _hooked(model: Andrea, layers: Sequence[str], found: dict[str, npt.NDArray[Any]]) -> Iterator[None]:
    """Records the output of every named module while the block runs."""
    modules = dict(model.named_modules())

    def record(name: str) -> Any:
        def hook(_module: torch.nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            found[name] = _array(output)

        return hook

    handles = [modules[name].register_forward_hook(record(name)) for name in layers if name in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _mixed(model: Andrea, half: torch.dtype) -> Andrea:
    """A copy in which HALF_MODULES of every block compute in the half type and everything else in fp32."""

    def cast_to(dtype: torch.dtype) -> Any:
        def hook(_module: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(
                value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
                for value in inputs
            )

        return hook

    mixed = copy.deepcopy(model)
    for block in mixed.blocks:
        modules = dict(block.named_modules())
        for name in HALF_MODULES:
            modules[name].to(half).register_forward_pre_hook(cast_to(half))
        for name in ("attn_residual", "mlp_residual"):
            modules[name].register_forward_pre_hook(cast_to(torch.float32))
    return mixed


def _array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    if tensor.dtype == torch.bfloat16:  # numpy has no bf16 of its own; the bits are the same
        return tensor.contiguous().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()
