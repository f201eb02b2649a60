"""Run as a program: builds TensorRT-RTX engines of small graphs with the plugin, one JSON line per case.

    python rtx_cases.py LIBRARY cases < cases.json      the cases of test_tensorrt_rtx.py
    python rtx_cases.py LIBRARY fuzz                    hypothesis draws graphs, until one breaks the contract

A process of its own: TensorRT aborts the process where it cannot go on. Needs no GPU.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import tensorrt_rtx as trt
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

TYPES = {
    "fp32": TensorProto.FLOAT,
    "fp16": TensorProto.FLOAT16,
    "bf16": TensorProto.BFLOAT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "fp64": TensorProto.DOUBLE,
    "bool": TensorProto.BOOL,
}
DEFAULT_ATTRIBUTES = {"plugin_namespace": "com.andrea", "plugin_version": "1"}


def model_from_case(case: dict[str, Any]) -> onnx.ModelProto:
    """A chain of `num_nodes` AndreaGelu nodes; a dimension is a size or a name."""
    shape, tensor_type = case["shape"], TYPES[case["type"]]
    num_nodes = case.get("num_nodes", 1)
    names = ["x", *(f"h{index}" for index in range(1, num_nodes)), "y"]
    attributes = {**DEFAULT_ATTRIBUTES, **case.get("attributes", {})}
    nodes = [
        helper.make_node(
            case.get("op_type", "AndreaGelu"),
            [names[index]] * case.get("num_inputs", 1),
            [names[index + 1]],
            name=f"gelu_{index}",
            domain="com.andrea",
            **{name: value for name, value in attributes.items() if value is not None},
        )
        for index in range(num_nodes)
    ]
    graph = helper.make_graph(
        nodes,
        "case",
        [helper.make_tensor_value_info("x", tensor_type, shape)],
        [helper.make_tensor_value_info("y", tensor_type, shape)],
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.andrea", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


class _Log(trt.ILogger):  # type: ignore[misc]
    """Keeps TensorRT's errors instead of printing them."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self.errors: list[str] = []

    def log(self, severity: trt.ILogger.Severity, message: str) -> None:
        if severity <= trt.ILogger.Severity.ERROR:
            self.errors.append(message)


class Builder:
    """One TensorRT-RTX builder with the plugin library loaded."""

    def __init__(self, library: Path) -> None:
        self.library = library
        self.log = _Log()
        self.builder = trt.Builder(self.log)
        self.builder.get_plugin_registry().load_library(str(library))

    def build(self, case: dict[str, Any]) -> dict[str, Any]:
        """What became of the case: parsed, plugin layers, output types and shapes, engine, errors."""
        self.log.errors.clear()
        network = self.builder.create_network()
        parser = trt.OnnxParser(network, self.log)
        parsed = parser.parse(model_from_case(case).SerializeToString())
        errors = [str(parser.get_error(index).desc()) for index in range(parser.num_errors)]
        layers = [network.get_layer(index) for index in range(network.num_layers)]
        result: dict[str, Any] = {
            "parsed": parsed,
            "plugin_layers": sum(layer.type == trt.LayerType.PLUGIN_V3 for layer in layers),
            "layers": len(layers),
        }
        if parsed:
            output = network.get_output(0)
            result["output_type"] = str(output.dtype)
            result["output_shape"] = list(output.shape)
            plan = self._plan(network, case)
            result["engine_bytes"] = 0 if plan is None else len(plan)
            result["embedded"] = plan is not None and self.library.read_bytes() in plan
        return {**result, "errors": errors + self.log.errors}

    def _plan(self, network: trt.INetworkDefinition, case: dict[str, Any]) -> bytes | None:
        config = self.builder.create_builder_config()
        if case.get("embed", True):
            config.plugins_to_serialize = [str(self.library)]
        if any(isinstance(extent, str) for extent in case["shape"]):
            profile = self.builder.create_optimization_profile()
            ranges = [
                [case["range"][kind] if isinstance(extent, str) else extent for extent in case["shape"]]
                for kind in ("min", "opt", "max")
            ]
            profile.set_shape("x", *ranges)
            config.add_optimization_profile(profile)
        plan = self.builder.build_serialized_network(network, config)
        return None if plan is None else bytes(plan)


def fuzz(builder: Builder) -> None:
    """Draws graphs. Each builds with one plugin layer a node, or is refused with a reason; the process survives."""
    extents = st.one_of(st.integers(0, 6), st.just("n"), st.sampled_from([128, 1024]))
    cases = st.fixed_dictionaries(
        {
            "type": st.sampled_from(sorted(TYPES)),
            "shape": st.lists(extents, min_size=0, max_size=9),
            "num_nodes": st.integers(1, 4),
            "num_inputs": st.sampled_from([1, 1, 1, 1, 2]),
            "embed": st.booleans(),
            "range": st.sampled_from([{"min": 0, "opt": 3, "max": 8}, {"min": 1, "opt": 1, "max": 1024}]),
        }
    )
    counts = {"built": 0, "refused": 0}

    @settings(max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(cases)
    def every_graph_is_built_or_refused(case: dict[str, Any]) -> None:
        # Names are stated once: TensorRT takes every "n" for the same size.
        result = builder.build(case)
        takes = case["type"] in ("fp32", "fp16", "bf16") and case["num_inputs"] == 1 and len(case["shape"]) <= 8
        fixed = [extent for extent in case["shape"] if isinstance(extent, int)]
        small = math.prod(fixed) * case["range"]["max"] ** case["shape"].count("n") < 2**31
        if case["type"] == "fp64" and result["parsed"]:
            takes = case["num_inputs"] == 1 and len(case["shape"]) <= 8  # the parser reads doubles as floats
        if takes and small:
            assert result["parsed"], result
            assert result["plugin_layers"] == result["layers"] == case["num_nodes"], result
            assert result["engine_bytes"] > 0, result
            assert result["embedded"] == case["embed"], result
            counts["built"] += 1
        elif not takes:
            assert not result["parsed"] or result["engine_bytes"] == 0, result
            assert result["errors"], result
            counts["refused"] += 1

    every_graph_is_built_or_refused()
    _answer({"fuzz": counts})


def _answer(result: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Answers every case on a line of its own, so that a crash is known to be the next one's."""
    builder = Builder(Path(sys.argv[1]))
    modes: dict[str, Callable[[], None]] = {
        "cases": lambda: [_answer(builder.build(case)) for case in json.load(sys.stdin)] and None,
        "fuzz": lambda: fuzz(builder),
    }
    modes[sys.argv[2]]()


if __name__ == "__main__":
    main()
