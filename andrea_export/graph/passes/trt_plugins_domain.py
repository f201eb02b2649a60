"""The GELU where onnxruntime's tensorrt provider looks for plugins."""

from __future__ import annotations

import onnx_ir as ir

from andrea_export.core.errors import PassError
from andrea_export.graph.passes.gelu_nodes import GeluPass, gelu_nodes

DOMAIN = "trt.plugins"


class TrtPluginsDomain(GeluPass):
    """Every GELU is in the domain ``trt.plugins``, with the attributes that name its plugin, and without a body.

    onnxruntime knows an operator of that domain only if a library in ``trt_extra_plugin_lib_paths`` brings its creator;
    with the body gone, a library that does not is an error and not the body instead.

    Requires: GELU nodes with the attributes that name the plugin. Ensures: none in the custom domain. Raises:
    PassError. Source: https://onnxruntime.ai/docs/execution-providers/TensorRT-ExecutionProvider.html
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Moves each node, then drops the function and the old domain."""
        for node in gelu_nodes(model, self.op):
            node.domain = DOMAIN
        self.remove_function(model)
        model.opset_imports.pop(self.op.domain, None)
        model.opset_imports[DOMAIN] = 1
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """Checks that nothing of the custom domain is left."""
        if gelu_nodes(model, self.op) or model.functions:
            raise PassError(f"the graph still uses {self.op.domain}")
