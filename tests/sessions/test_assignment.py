"""Where onnxruntime put a graph's nodes: a node that is elsewhere than asked is named."""

from __future__ import annotations

import re
from pathlib import Path

import onnxruntime
import pytest

from andrea_export.core.errors import (
    BackendUnavailable,
)
from andrea_export.sessions.onnxruntime import PROVIDERS, check_assignment


class Node:
    """What onnxruntime says of one node."""

    def __init__(self, name: str, op_type: str) -> None:
        self.name, self.op_type = name, op_type


class Subgraph:
    """What onnxruntime says of one part of a graph."""

    def __init__(self, ep_name: str, *nodes: Node) -> None:
        self.ep_name, self._nodes = ep_name, nodes

    def get_nodes(self) -> tuple[Node, ...]:
        return self._nodes


def test_onnxruntimes_own_record_of_a_graph_on_the_cpu(tiny_onnx: Path) -> None:
    """Here every node is on the CPU: as it should be where that was asked for, and elsewhere where CUDA was."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = onnxruntime.InferenceSession(str(tiny_onnx), options, providers=["CPUExecutionProvider"])
    record = session.get_provider_graph_assignment_info()
    check_assignment(PROVIDERS["cpu"], record)
    with pytest.raises(BackendUnavailable, match=r"provider cuda: \d+ nodes are not on it: ") as error:
        check_assignment(PROVIDERS["cuda"], record)
    named = str(error.value)
    assert "on CPUExecutionProvider" in named and re.search(r" and \d+ more$", named.splitlines()[0])


def test_a_node_that_landed_elsewhere_is_named() -> None:
    here = Subgraph("CUDAExecutionProvider", Node("blocks.0.mlp.fc", "MatMul"))
    check_assignment(PROVIDERS["cuda"], [here])
    elsewhere = Subgraph("CPUExecutionProvider", Node("blocks.0.mlp.gelu", "Gelu"))
    with pytest.raises(
        BackendUnavailable, match=r"1 nodes are not on it: blocks\.0\.mlp\.gelu \(Gelu\) on CPU"
    ) as error:
        check_assignment(PROVIDERS["cuda"], [here, elsewhere])
    assert error.value.hint == "allow it with --allow-cpu-nodes"
