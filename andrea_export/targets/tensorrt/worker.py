"""The child process in which TensorRT runs: reads requests from stdin, answers on the pipe whose number it was given.

Run as ``python -m andrea_export.targets.tensorrt.worker FD``. Which flavour it drives is Polygraphy's choice, by the
environment it was started with. It ends when stdin does. Arrays travel as raw bytes in files, their layouts in the
messages.
"""

import ctypes
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from andrea_export.core.errors import AndreaError, BuildError, RunError, first_line
from andrea_export.targets.tensorrt import worker_build

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>

# Said for every integer input, which has the int64 type it asks for; and the frame around a node's dump.
_NOISE = ("has Int64 binding", "--- Begin node ---", "--- End node ---")


class Replies:
    """Writes events to the parent, one JSON line each."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def doing(self, text: str) -> None:
        """What the worker is about to do, as a participle: ``parsing the ONNX file``."""
        self._send({"event": "doing", "text": text})

    def log(self, level: str, text: str) -> None:
        """One message of TensorRT's log, ``warning`` or ``error``."""
        self._send({"event": "log", "level": level, "text": text})

    def result(self, result: dict[str, Any]) -> None:
        """The answer to a request."""
        self._send({"event": "result", "result": result})

    def error(self, error: AndreaError) -> None:
        """Why a request has no answer."""
        self._send({"event": "error", "kind": type(error).__name__, "message": str(error), "hint": error.hint})

    def _send(self, event: dict[str, Any]) -> None:
        self._file.write(json.dumps(event) + "\n")
        self._file.flush()


class _ToParent(logging.Handler):
    """Writes Polygraphy's log, and so TensorRT's, to the log file; tells the parent warnings and errors as well."""

    def __init__(self, replies: Replies) -> None:
        super().__init__()
        self._replies = replies

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage().strip()
        sys.stderr.write(f"{record.levelname} {text}\n")
        sys.stderr.flush()
        level = record.levelname.lower()  # what is critical is raised as well, and reported as that
        if level in ("warning", "error") and not any(noise in text for noise in _NOISE):
            self._replies.log(level, text)


def die_with_parent(parent: int) -> None:
    """The kernel kills this process when the thread that started it ends: no build outlives its asker."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the line above
        os.kill(os.getpid(), signal.SIGKILL)


def _start_logging(replies: Replies) -> None:
    from polygraphy.logger import G_LOGGER

    G_LOGGER.letter = False
    G_LOGGER.module_severity = G_LOGGER.VERBOSE  # TensorRT's INFO
    G_LOGGER.use_python_logging_system = True
    logger = logging.getLogger("Polygraphy")
    logger.setLevel(1)
    logger.propagate = False
    logger.addHandler(_ToParent(replies))


Layout = Mapping[str, Any]  # {"dtype": a key of DTYPES, "shape": [...], "file": path}


class EngineRunner:
    """One engine, deserialised and ready. Raises Polygraphy's exceptions; the worker turns them into RunError."""

    def __init__(self, engine: str) -> None:
        worker_build.import_tensorrt()
        from polygraphy.backend.trt import EngineFromPath, TrtRunner

        self._runner = TrtRunner(EngineFromPath(engine))
        self._runner.activate()
        self.context = self._runner.context
        self._empty: Any = None

    def describe(self) -> dict[str, Any]:
        """The engine's outputs, in order."""
        trt = worker_build.import_tensorrt()
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

    from andrea_export.core.dtypes import DTYPES

    dtype = getattr(torch, DTYPES[layout["dtype"]].torch)
    data = bytearray(Path(layout["file"]).read_bytes())
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(layout["shape"])


def write_tensor(tensor: Any, path: Path) -> Layout:
    """Writes a torch tensor's bytes; returns how to read them."""
    import torch

    from andrea_export.core.dtypes import DTYPES

    names = [row.name for row in DTYPES.values() if row.torch == str(tensor.dtype).removeprefix("torch.")]
    if not names:
        raise RunError(f"an output has type {tensor.dtype}, which no precision has")
    path.write_bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return {"dtype": names[0], "shape": list(tensor.shape), "file": str(path)}


class Worker:
    """Answers requests. Holds the engine that ``open`` opened."""

    def __init__(self, replies: Replies) -> None:
        self._replies = replies
        self._runner: EngineRunner | None = None

    def build(self, request: dict[str, Any]) -> dict[str, Any]:
        """Builds an engine; see ``worker_build.build``."""
        return worker_build.build(request, self._replies.doing)

    def open(self, engine: str) -> EngineRunner:
        """An engine, ready to run."""
        return EngineRunner(engine)

    def answer(self, request: dict[str, Any]) -> None:
        """Replies with a result or an error. Anything else ends the process, its traceback in the log."""
        from polygraphy.exception import PolygraphyException

        verb = request["verb"]
        failure = RunError if verb in ("open", "run") else BuildError
        try:
            self._replies.result(self._result(verb, request))
        except AndreaError as error:
            self._replies.error(error)
        except PolygraphyException as error:
            self._replies.error(failure(f"TensorRT refused: {first_line(error)}"))

    def _result(self, verb: str, request: dict[str, Any]) -> dict[str, Any]:
        if verb == "describe":
            return worker_build.describe()
        if verb == "build":
            die_with_parent(request["parent"])
            return self.build(request)
        if verb == "open":
            self._runner = self.open(request["engine"])
            return self._runner.describe()
        if verb == "run" and self._runner is not None:
            return self._runner.run(request["feeds"], request["folder"])
        raise ValueError(f"cannot '{verb}' now")


def main(worker_type: type[Worker] = Worker) -> None:
    """Answers requests until stdin ends."""
    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as pipe:
        replies = Replies(pipe)
        _start_logging(replies)
        worker = worker_type(replies)
        for line in sys.stdin:
            worker.answer(json.loads(line))


if __name__ == "__main__":
    main()
