"""Inside the worker: runs an engine on the GPU. Arrays travel as raw bytes in files, their layouts in the messages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from andrea_export.core.dtypes import DTYPES
from andrea_export.core.errors import RunError
from andrea_export.targets.tensorrt.worker_build import import_tensorrt

Layout = Mapping[str, Any]  # {"dtype": a key of DTYPES, "shape": [...], "file": path}


class EngineRunner:
    """One engine, deserialised and ready. Raises Polygraphy's exceptions; the worker turns them into RunError."""

    def __init__(self, engine: str) -> None:
        import_tensorrt()
        from polygraphy.backend.trt import EngineFromPath, TrtRunner

        self._runner = TrtRunner(EngineFromPath(engine))
        self._runner.activate()
        self.context = self._runner.context
        self._empty: Any = None

    def describe(self) -> dict[str, Any]:
        """The engine's outputs, in order."""
        trt = import_tensorrt()
        engine = self._runner.engine
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        return {"outputs": [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.OUTPUT]}

    def run(self, feeds: Mapping[str, Layout], folder: str) -> dict[str, Layout]:
        """Every output, written into the folder."""
        outputs = self._runner.infer({name: self._device_or_host(layout) for name, layout in feeds.items()})
        return {
            name: write_tensor(tensor, Path(folder) / f"output-{index}")
            for index, (name, tensor) in enumerate(outputs.items())
        }

    def _device_or_host(self, layout: Layout) -> Any:
        tensor = read_tensor(layout)
        if tensor.numel() > 0:
            return tensor
        # TensorRT wants an address for every input, and an allocation of 0 bytes has none: an empty cache points at a
        # byte that is never read.
        from polygraphy import cuda
        from polygraphy.datatype import DataType

        if self._empty is None:
            self._empty = cuda.DeviceArray.raw((1,))
        return cuda.DeviceView(self._empty.ptr, tuple(layout["shape"]), DataType.from_dtype(tensor.dtype, "torch"))


def read_tensor(layout: Layout) -> Any:
    """A torch tensor on the CPU, which has bf16 where numpy has not."""
    import torch

    dtype = getattr(torch, DTYPES[layout["dtype"]].torch)
    data = bytearray(Path(layout["file"]).read_bytes())
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(layout["shape"])


def write_tensor(tensor: Any, path: Path) -> Layout:
    """Writes a torch tensor's bytes; returns how to read them."""
    import torch

    names = [row.name for row in DTYPES.values() if row.torch == str(tensor.dtype).removeprefix("torch.")]
    if not names:
        raise RunError(f"an output has type {tensor.dtype}, which no precision has")
    path.write_bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return {"dtype": names[0], "shape": list(tensor.shape), "file": str(path)}
