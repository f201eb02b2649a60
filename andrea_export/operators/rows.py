"""The custom operators' rows, read from ``plugins/*/op.json``: the one description for graph, plugin and tests.

CMake turns the same files into the C++ rows that the plugin is compiled with, so the two sides cannot disagree.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass

from andrea_export.operators.sources import operator_folders


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomOp:
    """One custom operator: its ONNX identity and the TensorRT plugin that implements it."""

    op_type: str
    domain: str
    opset_version: int
    plugin_namespace: str
    plugin_version: str
    attributes: tuple[str, ...]
    storage_types: tuple[str, ...]
    function_body: str
    """One ONNX statement over input ``x`` and output ``y``, in onnx.parser's language."""

    @property
    def qualified_name(self) -> str:
        """``domain::op_type``, as ``torch.onnx.ops.symbolic`` wants it."""
        return f"{self.domain}::{self.op_type}"


def custom_ops() -> dict[str, CustomOp]:
    """The row of every custom operator by the name of its folder, in the order of the library's creators.

    Raises: PluginError if this installation carries no plugin sources.
    """
    rows = {folder.name: json.loads((folder / "op.json").read_text()) for folder in operator_folders()}
    lists = ("attributes", "storage_types")
    return {name: CustomOp(**{**row, **{key: tuple(row[key]) for key in lists}}) for name, row in rows.items()}


@functools.cache
def andrea_gelu() -> CustomOp:
    """The row of ``com.andrea::AndreaGelu``, the tanh-form GELU."""
    return custom_ops()["gelu"]
