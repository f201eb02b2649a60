"""What this machine can do at best: how fast it reads memory, and how fast it multiplies matrices.

A benchmark's figures are shares of these two; both are measured with the threads the model runs with.
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_READ_BYTES = 512 * 1000 * 1000  # far more than any cache in use today
_ROUNDS = 5
_K, _N, _M = 768, 3072, 1024  # the MLP's matrix, and a full context of rows


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLimits:
    """Read bandwidth in bytes a second, matrix rates in operations (2 a multiply-add) a second."""

    read_bytes_s: float
    fp32_flops: float
    int8_ops: float


def measure_limits(num_threads: int) -> MachineLimits:
    """Medians of five runs each, in about two seconds on two cores."""
    return MachineLimits(
        read_bytes_s=_read_bandwidth(num_threads),
        fp32_flops=_matrix_rate("MatMul", num_threads),
        int8_ops=_matrix_rate("DynamicQuantizeMatMul", num_threads),
    )


def _read_bandwidth(num_threads: int) -> float:
    """Every thread takes the dot product of its own part with itself: one read, next to no arithmetic."""
    parts = np.array_split(np.ones(_READ_BYTES // 4, np.float32), num_threads)
    with ThreadPoolExecutor(num_threads) as pool:

        def once() -> None:
            list(pool.map(lambda part: np.dot(part, part), parts))

        return _READ_BYTES / _median_seconds(once)


def _matrix_rate(op_type: str, num_threads: int) -> float:
    """onnxruntime's own kernel on the MLP's shape; for int8 with the rounding of the activations included."""
    import onnxruntime

    random = np.random.default_rng(0)
    if op_type == "MatMul":
        weights = [numpy_helper.from_array(random.standard_normal((_K, _N)).astype(np.float32), "w")]
        node = helper.make_node(op_type, ["x", "w"], ["y"])
    else:
        weights = [
            numpy_helper.from_array(random.integers(-127, 128, (_K, _N)).astype(np.int8), "w"),
            numpy_helper.from_array(np.ones(_N, np.float32), "s"),
        ]
        node = helper.make_node(op_type, ["x", "w", "s"], ["y"], domain="com.microsoft")
    graph = helper.make_graph(
        [node],
        "rate",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [_M, _K])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [_M, _N])],
        weights,
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model: Any = helper.make_model(graph, opset_imports=imports, ir_version=10)
    assert isinstance(model, onnx.ModelProto)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {"x": random.standard_normal((_M, _K)).astype(np.float32)}
    return 2 * _M * _K * _N / _median_seconds(lambda: session.run(None, feeds))


def _median_seconds(run: Any) -> float:
    run()
    seconds = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)
