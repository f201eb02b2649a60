"""The plugin's GELU: leaves a parser nothing to take but the plugin."""

from __future__ import annotations

import onnx_ir as ir

from andrea_export.core.errors import PassError
from andrea_export.graph.passes.gelu_nodes import GeluPass, check_gelu_nodes


class PluginGelu(GeluPass):
    """Every GELU node names its plugin and has no function body that a parser could take instead.

    Requires: GELU nodes with the attributes that name the plugin. Ensures: the same, and no local function. Raises:
    PassError. Source: parsers from TensorRT 10.15 on take the plugin if the node has ``plugin_namespace``; older
    ones, and any on which an attribute is lost, take the local function.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Removes the function body."""
        return ir.passes.PassResult(model, modified=self.remove_function(model))

    def ensures(self, model: ir.Model) -> None:
        """Checks that nothing but the plugin is left."""
        check_gelu_nodes(model, self.op)
        if model.functions:
            names = ", ".join(f"{domain}::{name}" for domain, name, _ in model.functions)
            raise PassError(f"a parser could still take a local function: {names}")
