"""The custom operator's row, read from ``plugins/gelu/op.json``: the one description for graph, plugin and tests.

CMake turns the same file into the C++ header the plugin is compiled with, so the two sides cannot disagree.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from andrea_export.core.errors import PluginError


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


def plugin_source_dir() -> Path:
    """The folder of the plugin's C++ sources: inside an installed wheel, or ``plugins/`` of a checkout.

    Raises: PluginError if this installation carries neither.
    """
    here = Path(__file__).resolve().parents[1]
    for folder in (here / "_plugin_sources", here.parent / "plugins"):
        if (folder / "gelu" / "op.json").is_file():
            return folder
    raise PluginError(
        f"the plugin's sources are not beside {here}",
        hint="reinstall andrea-export from its wheel, or install the checkout with `pip install -e .`",
    )


@functools.cache
def andrea_gelu() -> CustomOp:
    """The row of ``com.andrea::AndreaGelu``, the tanh-form GELU."""
    row = json.loads((plugin_source_dir() / "gelu" / "op.json").read_text())
    return CustomOp(**{**row, "attributes": tuple(row["attributes"]), "storage_types": tuple(row["storage_types"])})
