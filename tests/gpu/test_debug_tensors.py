"""Reading an engine's inner layers: what the listener does, with fakes for a GPU; what the comparison says."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

import debug_tensors
from engine_layers import compare_layers

from andrea_export.backends.torch_reference import TorchSession
from andrea_export.checkpoint import LoadedModel
from andrea_export.diff.cases import seeded_cases
from andrea_export.errors import BuildError, RunError
from andrea_export.specs import layer_names


def tensorrt() -> Any:
    """TensorRT-RTX where it is installed, so that its own listener class is derived from; else what of it is used."""
    if importlib.util.find_spec("tensorrt_rtx") is not None:
        import tensorrt_rtx

        return tensorrt_rtx
    location = SimpleNamespace(HOST=0, DEVICE=1)
    return SimpleNamespace(IDebugListener=type("IDebugListener", (), {}), TensorLocation=location)


def capsule(address: int) -> Any:
    """A pointer as TensorRT's binding hands it over."""
    new = ctypes.pythonapi.PyCapsule_New
    new.argtypes, new.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p], ctypes.py_object
    return new(address, None, None)


def tell(listener: Any, name: str, values: torch.Tensor, type_name: str) -> bool:
    """Calls the listener as TensorRT does, for a tensor in host memory."""
    return bool(
        listener.process_debug_tensor(
            capsule(values.data_ptr() or 1),  # an empty tensor has no address
            tensorrt().TensorLocation.HOST,
            SimpleNamespace(name=type_name),
            tuple(values.shape),
            name,
            0,
        )
    )


@pytest.mark.parametrize(
    ("type_name", "dtype"),
    [("FLOAT", torch.float32), ("HALF", torch.float16), ("BF16", torch.bfloat16), ("INT64", torch.int64)],
)
def test_the_listener_keeps_a_copy_of_what_it_is_shown(type_name: str, dtype: torch.dtype) -> None:
    listener = debug_tensors.make_listener(tensorrt())
    values = torch.arange(24).reshape(2, 3, 4).to(dtype)
    shown = values.clone()
    assert tell(listener, "blocks.0.mlp.gelu", shown, type_name)
    shown.zero_()  # the address is TensorRT's again
    assert torch.equal(listener.tensors["blocks.0.mlp.gelu"], values)
    assert listener.tensors["blocks.0.mlp.gelu"].dtype == dtype
    assert tell(listener, "empty", torch.empty((2, 0), dtype=dtype), type_name)
    assert listener.tensors["empty"].shape == (2, 0)
    assert listener.problems == {}


def test_what_cannot_be_read_is_named_and_nothing_is_thrown() -> None:
    listener = debug_tensors.make_listener(tensorrt())
    assert tell(listener, "odd", torch.zeros(3), "FP4")
    assert listener.tensors == {}
    assert "KeyError" in listener.problems["odd"]


class Context:
    """An execution context, as far as debug tensors go."""

    def __init__(self, *, takes: bool = True, turns_on: bool = True) -> None:
        self.takes, self.turns_on = takes, turns_on
        self.listener: Any = None

    def set_debug_listener(self, listener: Any) -> bool:
        self.listener = listener
        return self.takes

    @property
    def unfused_tensors_debug_state(self) -> bool:
        return self.turns_on and self.state

    @unfused_tensors_debug_state.setter
    def unfused_tensors_debug_state(self, state: bool) -> None:
        self.state = state


def test_a_listener_is_attached_and_turned_on_or_it_is_said_why_not() -> None:
    context = Context()
    listener = debug_tensors.attach(tensorrt(), context)
    assert context.listener is listener
    assert context.unfused_tensors_debug_state
    with pytest.raises(RunError, match="took no debug listener"):
        debug_tensors.attach(tensorrt(), Context(takes=False))
    with pytest.raises(RunError, match="would not turn on"):
        debug_tensors.attach(tensorrt(), Context(turns_on=False))


def test_a_network_that_cannot_be_marked_is_an_error() -> None:
    with pytest.raises(BuildError, match=r"10\.11"):
        debug_tensors.mark(SimpleNamespace())
    with pytest.raises(BuildError, match="would not mark"):
        debug_tensors.mark(SimpleNamespace(mark_unfused_tensors_as_debug_tensors=lambda: False))


class Engine(TorchSession):
    """torch in fp32 in an engine's place: without the layers a builder fuses, and with a tensor of its own."""

    fused = ("blocks.0.ln_1", "blocks.1.attn.qkv")
    fault: str | None = None

    def run(self, feeds: Any) -> dict[str, Any]:
        found = {name: value for name, value in super().run(feeds).items() if name not in self.fused}
        if self.fault is not None:
            found[self.fault] = found[self.fault] * np.float32(1.001)
        return {**found, "__myl_Add_3": np.zeros(3, np.float32)}


def test_every_layer_is_compared_or_named_as_fused_away(tiny: LoadedModel) -> None:
    names = tuple(layer_names(tiny.config))
    found = compare_layers(Engine(tiny.model, layers=names), tiny.model, seeded_cases(tiny.config), "fp32")
    assert found.not_seen == Engine.fused
    assert set(found.compared) == set(names) - set(Engine.fused)
    assert found.others == ("__myl_Add_3",)
    assert found.out_of_budget == ()
    assert 0 < found.worst_share <= 1


def test_a_fault_is_found_in_its_layer(tiny: LoadedModel) -> None:
    engine = Engine(tiny.model, layers=tuple(layer_names(tiny.config)))
    engine.fault = "blocks.1.mlp.gelu"
    found = compare_layers(engine, tiny.model, seeded_cases(tiny.config), "fp32")
    assert found.out_of_budget == (found.worst_layer,) == ("blocks.1.mlp.gelu",)
