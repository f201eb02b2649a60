"""Times the kernel against a device-to-device copy and against torch's GELU, eager and compiled."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from gpu_parts import STORAGE_TYPES, Built, NotAvailable, PartResult, PluginOnTensors

# The MLP of ANDREA-120M in a large prefill, and in one decode step.
SHAPES = {"large": (8192, 3072), "decode": (1, 3072)}
_REPLAYS = 30
# Medians of the same graph, timed again, differ by less than this on a GPU whose clocks are left alone.
_NOISE = 0.02


def run(built: Built, result: PartResult) -> None:
    """One row a type and shape. Raises: NotAvailable in a rehearsal."""
    if built.device != "cuda":
        raise NotAvailable("torch sees no CUDA GPU on this machine")
    plugin = PluginOnTensors(built)
    try:
        for name, shape in SHAPES.items():
            for storage, dtype in STORAGE_TYPES.items():
                result.row(_time_one(result, plugin, name, shape, storage, dtype))
    finally:
        plugin.close()


def _time_one(
    result: PartResult,
    plugin: PluginOnTensors,
    name: str,
    shape: tuple[int, int],
    storage: str,
    dtype: torch.dtype,
) -> dict[str, object]:
    bytes_moved = 2 * shape[0] * shape[1] * dtype.itemsize
    # Large arrays go round through eight times what fits in the L2 cache, so that every pass comes from memory. A
    # decode step's few kilobytes are in the cache in real use too.
    num_buffers = 8 if name == "large" else 64
    num_calls = 16 if name == "large" else 256
    inputs = [torch.randn(shape, device="cuda", dtype=dtype) * 2 for _ in range(num_buffers)]
    outputs = [torch.empty_like(x) for x in inputs]
    kept: list[torch.Tensor] = []  # a compiled function allocates its result: kept, so that each call has its own
    compiled = torch.compile(lambda x: F.gelu(x, approximate="tanh"), dynamic=False)

    def over_buffers(call: Callable[[torch.Tensor, torch.Tensor], object]) -> list[Callable[[], object]]:
        return [
            lambda x=inputs[index % num_buffers], y=outputs[index % num_buffers]: call(x, y)
            for index in range(num_calls)
        ]

    times = {
        "copy": microseconds(over_buffers(lambda x, y: y.copy_(x))),
        "plugin": microseconds(over_buffers(plugin.into)),
        "torch eager": microseconds(over_buffers(lambda x, y: torch.ops.aten.gelu.out(x, approximate="tanh", out=y))),
    }
    try:
        times["torch compiled"] = microseconds(over_buffers(lambda x, y: kept.append(compiled(x))))
    except Exception as error:  # the compiler is torch's: whatever stops it is a note, the other times stand
        result.note(f"{storage} {name}: torch.compile: {type(error).__name__}: {str(error).splitlines()[0]}")
    kept.clear()
    share = times["copy"] / times["plugin"]
    fastest = min(value for key, value in times.items() if key.startswith("torch"))
    if name == "large":
        result.goal(
            f"{storage} {list(shape)}: at least 92 % of the copy's bandwidth",
            met=share >= 0.92,
            measured=f"{share:.1%}",
        )
    result.goal(
        f"{storage} {list(shape)}: not slower than torch's GELU (noise {_NOISE:.0%})",
        met=times["plugin"] <= fastest * (1 + _NOISE),
        measured=f"{times['plugin']:.2f} us against {fastest:.2f} us",
    )
    return {
        "type": storage,
        "shape": str(list(shape)),
        **{f"{key}, us": round(value, 3) for key, value in times.items()},
        "plugin, GB/s": round(bytes_moved / times["plugin"] / 1e3, 1),
        "share of copy": f"{share:.1%}",
    }


def microseconds(calls: Sequence[Callable[[], object]]) -> float:
    """The median time of one call: all calls in one CUDA graph, so that no Python stands between the launches."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls[:3]:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    for _ in range(3):
        graph.replay()
    times = []
    for _ in range(_REPLAYS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / len(calls))
    return statistics.median(times)
