"""Debug tensors: an engine's inner layers, read while it runs, without changing what the builder fuses.

``mark_unfused_tensors_as_debug_tensors`` leaves fusion as it is; ``mark_debug`` and ``mark_output`` would end it at the
tensor they name. What the builder fused away has no tensor to read and is absent from what is recorded. TensorRT 10.11
and later, and TensorRT-RTX.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any

import torch

from andrea_export.core.dtypes import DTYPES
from andrea_export.core.errors import BuildError, RunError

_TORCH_TYPES = {row.tensorrt: getattr(torch, row.torch) for row in DTYPES.values() if row.tensorrt}


def mark(network: Any) -> None:
    """Marks every tensor that the builder leaves unfused. Raises: BuildError where TensorRT cannot or will not."""
    if not hasattr(network, "mark_unfused_tensors_as_debug_tensors"):
        raise BuildError("this TensorRT has no debug tensors that leave fusion as it is (10.11 and later have them)")
    if not network.mark_unfused_tensors_as_debug_tensors():
        raise BuildError("TensorRT would not mark the unfused tensors as debug tensors")


def attach(trt: Any, context: Any) -> Any:
    """A listener that records every debug tensor of the context's runs. It must outlive them. Raises: RunError."""
    listener = make_listener(trt)
    if not context.set_debug_listener(listener):
        raise RunError("TensorRT took no debug listener")
    context.unfused_tensors_debug_state = True
    if not context.unfused_tensors_debug_state:
        raise RunError("TensorRT would not turn on the debug tensors: was the engine built with them?")
    return listener


def make_listener(trt: Any) -> Any:
    """A listener with ``tensors``, what each name's last value was, and ``problems``, why a name has none."""

    class Recorder(trt.IDebugListener):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IDebugListener.__init__(self)
            self.tensors: dict[str, torch.Tensor] = {}
            self.problems: dict[str, str] = {}

        def process_debug_tensor(self, addr: Any, location: Any, type: Any, shape: Any, name: str, stream: int) -> bool:
            try:
                on_device = location == trt.TensorLocation.DEVICE
                self.tensors[name] = copied(addr, type.name, tuple(shape), on_device=on_device, stream=stream)
            except Exception as error:  # TensorRT calls this: an exception would cross it and end the process
                self.problems[name] = f"{error.__class__.__name__}: {error}"
            return True

    return Recorder()


def copied(addr: Any, type_name: str, shape: tuple[int, ...], *, on_device: bool, stream: int) -> torch.Tensor:
    """A tensor of its own on the CPU, from an address that is valid for this call only. Raises: KeyError (type)."""
    dtype = _TORCH_TYPES[type_name]
    num_bytes = dtype.itemsize
    for extent in shape:
        num_bytes *= extent
    if num_bytes == 0:
        return torch.empty(shape, dtype=dtype)
    pointer = pointer_from(addr)
    if on_device:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream)):  # after what TensorRT has put on it
            flat = torch.as_tensor(_DeviceBytes(pointer, num_bytes), device="cuda").cpu()
    else:
        flat = torch.frombuffer(bytearray(ctypes.string_at(pointer, num_bytes)), dtype=torch.uint8)
    return flat.view(dtype).reshape(shape)


def pointer_from(addr: Any) -> int:
    """The address in what TensorRT's binding hands over: a capsule, or the number itself."""
    if isinstance(addr, int):
        return addr
    api = ctypes.pythonapi
    api.PyCapsule_GetName.argtypes, api.PyCapsule_GetName.restype = [ctypes.py_object], ctypes.c_char_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    return int(api.PyCapsule_GetPointer(addr, api.PyCapsule_GetName(addr)))


# Under this name a run's outputs hold what is to be said about the others.
REPORT = "debug_tensors.report"


def report_tensor(problems: dict[str, str], num_engine_layers: int) -> torch.Tensor:
    """Why each tensor could not be read, and how many layers the engine has, as a tensor: [characters], int64.

    A session hands over tensors and nothing else.
    """
    text = json.dumps({"problems": problems, "num_engine_layers": num_engine_layers})
    return torch.tensor([ord(character) for character in text], dtype=torch.int64)


class _DeviceBytes:
    """Device memory as torch reads it from other libraries (the CUDA array interface, version 2)."""

    def __init__(self, pointer: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 2,
        }
