"""The custom GELU's nodes in a graph, and the passes that rewrite them: so that a parser has one way to read each."""

from collections.abc import Mapping

import onnx_ir as ir

from andrea_export.core.errors import PassError
from andrea_export.graph.passes.graph_edits import HINT, cast_beside, node_beside, nodes_of
from andrea_export.operators.sources import CustomOp


class GeluPass(ir.passes.InPlacePass):
    """A pass over the nodes of one custom operator. Requires: nodes with the attributes that name the plugin."""

    def __init__(self, op: CustomOp) -> None:
        super().__init__()
        self.op = op

    def requires(self, model: ir.Model) -> None:
        check_gelu_nodes(model, self.op)

    def remove_function(self, model: ir.Model) -> bool:
        """Whether there was a local function of the operator; there is none afterwards."""
        removed = [key for key in model.functions if key[:2] == (self.op.domain, self.op.op_type)]
        for key in removed:
            del model.functions[key]
        return bool(removed)


def gelu_nodes(model: ir.Model, op: CustomOp) -> list[ir.Node]:
    """The nodes of the custom operator, in graph order."""
    return nodes_of(model, op.op_type, op.domain)


def check_gelu_nodes(model: ir.Model, op: CustomOp) -> None:
    """Holds if there are GELU nodes, each with one input, one output and exactly the attributes that name the plugin.

    Raises: PassError listing every node for which it does not.
    """
    nodes = gelu_nodes(model, op)
    if not nodes:
        raise PassError(f"the graph has no {op.qualified_name} node", hint=HINT)
    wanted = {"plugin_namespace": op.plugin_namespace, "plugin_version": op.plugin_version}
    problems = []
    for node in nodes:
        found = {attribute.name: attribute.value for attribute in node.attributes.values()}
        if found != wanted:
            problems.append(f"{node.name} has {_shown(found)}")
        if len(node.inputs) != 1 or len(node.outputs) != 1:
            problems.append(f"{node.name} has {len(node.inputs)} inputs and {len(node.outputs)} outputs")
    if problems:
        raise PassError(
            f"{op.qualified_name} nodes must have one input, one output and {_shown(wanted)}: {'; '.join(problems)}",
            hint=HINT,
        )


def _shown(attributes: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in sorted(attributes.items())) or "no attributes"


_FP32 = ir.DataType.FLOAT


class NativeGelu(GeluPass):
    """Every GELU is the standard ``Gelu(approximate="tanh")``, computed in fp32, under the same node and value names.

    A half GELU is cast to fp32 and back: a runtime may compute Gelu in its storage type, where x³ overflows fp16 from
    41 on.

    Requires: GELU nodes with the attributes that name the plugin. Ensures: no node, function or import of the custom
    domain. Raises: PassError.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        for node in gelu_nodes(model, self.op):
            _replace(model.graph, node)
        self.remove_function(model)
        model.opset_imports.pop(self.op.domain, None)
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        left = [str(node.name) for node in model.graph if node.domain == self.op.domain]
        if left or model.functions or self.op.domain in model.opset_imports:
            raise PassError(f"the graph still uses {self.op.domain}: {', '.join(left) or 'functions or opset import'}")


def _replace(graph: ir.Graph, node: ir.Node) -> None:
    name, x, y = str(node.name), node.inputs[0], node.outputs[0]
    tanh = {"approximate": "tanh"}
    if y.dtype == _FP32:
        new = [node_beside(node, "Gelu", [x], name, attributes=tanh)]
    else:
        assert y.dtype is not None
        before = cast_beside(node, x, _FP32, f"{name}/Cast")
        gelu = node_beside(node, "Gelu", before.outputs, f"{name}/Gelu", attributes=tanh, dtype=_FP32)
        new = [before, gelu, cast_beside(node, gelu.outputs[0], y.dtype, name)]
    ir.convenience.replace_nodes_and_values(graph, node, [node], new, [y], [new[-1].outputs[0]])


DOMAIN = "trt.plugins"


class TrtPluginsDomain(GeluPass):
    """Every GELU is in the domain ``trt.plugins``, with the attributes that name its plugin, and without a body.

    onnxruntime knows an operator of that domain only if a library in ``trt_extra_plugin_lib_paths`` brings its creator;
    with the body gone, a library that does not is an error and not the body instead.

    Requires: GELU nodes with the attributes that name the plugin. Ensures: none in the custom domain. Raises:
    PassError. Source: https://onnxruntime.ai/docs/execution-providers/TensorRT-ExecutionProvider.html
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        for node in gelu_nodes(model, self.op):
            node.domain = DOMAIN
        self.remove_function(model)
        model.opset_imports.pop(self.op.domain, None)
        model.opset_imports[DOMAIN] = 1
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        if gelu_nodes(model, self.op) or model.functions:
            raise PassError(f"the graph still uses {self.op.domain}")


class PluginGelu(GeluPass):
    """Every GELU node names its plugin and has no function body that a parser could take instead.

    Requires: GELU nodes with the attributes that name the plugin. Ensures: the same, and no local function. Raises:
    PassError. Source: parsers from TensorRT 10.15 on take the plugin if the node has ``plugin_namespace``; older
    ones, and any on which an attribute is lost, take the local function.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        return ir.passes.PassResult(model, modified=self.remove_function(model))

    def ensures(self, model: ir.Model) -> None:
        check_gelu_nodes(model, self.op)
        if model.functions:
            names = ", ".join(f"{domain}::{name}" for domain, name, _ in model.functions)
            raise PassError(f"a parser could still take a local function: {names}")
