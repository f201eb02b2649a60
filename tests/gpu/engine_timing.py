"""Run as a program: the median time of one step of an ANDREA engine, for a prefill and a decode step.

    python engine_timing.py ENGINE.plan tensorrt_rtx|tensorrt

Prints one JSON object: the engine's number of layers, and shape to microseconds. A process of its own, as
TensorRT may end it.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

# (batch, new tokens, tokens in the cache)
STEPS = {"prefill 1x128": (1, 128, 0), "decode 1x1 past 128": (1, 1, 128), "prefill 8x512": (8, 512, 0)}
_RUNS = 50


def main() -> None:
    """Times every step of the engine."""
    trt = importlib.import_module(sys.argv[2])
    runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
    engine = runtime.deserialize_cuda_engine(Path(sys.argv[1]).read_bytes())
    if engine is None:
        raise SystemExit("the engine cannot be deserialised here")
    context = engine.create_execution_context()
    times = {name: _time_step(trt, engine, context, step) for name, step in STEPS.items()}
    sys.stdout.write(json.dumps({"layers": engine.num_layers, "times": times}) + "\n")


def _time_step(trt: Any, engine: Any, context: Any, step: tuple[int, int, int]) -> float:
    stream = torch.cuda.Stream()
    tensors = []
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    inputs = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
    for name in inputs:
        shape = _input_shape(name, list(engine.get_tensor_shape(name)), step)
        context.set_input_shape(name, shape)
        tensors.append(_tensor(trt, engine, name, shape))
        context.set_tensor_address(name, tensors[-1].data_ptr())
    for name in names:
        if name not in inputs:
            tensors.append(_tensor(trt, engine, name, list(context.get_tensor_shape(name))))
            context.set_tensor_address(name, tensors[-1].data_ptr())
    times = []
    for run in range(_RUNS + 5):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record(stream)
        if not context.execute_async_v3(stream.cuda_stream):
            raise SystemExit("the engine does not run")
        end.record(stream)
        end.synchronize()
        if run >= 5:  # the first runs compile and warm up
            times.append(start.elapsed_time(end) * 1000)
    return statistics.median(times)


def _input_shape(name: str, shape: list[int], step: tuple[int, int, int]) -> list[int]:
    batch, tokens, past = step
    if name == "attention_mask":
        return [batch, past + tokens]
    if name.startswith("past_key_values."):
        return [batch, shape[1], past, shape[3]]
    return [batch, tokens]


def _tensor(trt: Any, engine: Any, name: str, shape: list[int]) -> torch.Tensor:
    """Ones: valid token ids, positions and a mask without padding. One element at least, for an address."""
    types = {
        trt.DataType.FLOAT: torch.float32,
        trt.DataType.HALF: torch.float16,
        trt.DataType.BF16: torch.bfloat16,
        trt.DataType.INT32: torch.int32,
        trt.DataType.INT64: torch.int64,
    }
    count = 1
    for extent in shape:
        count *= extent
    return torch.ones(max(count, 1), dtype=types[engine.get_tensor_dtype(name)], device="cuda")


if __name__ == "__main__":
    main()
