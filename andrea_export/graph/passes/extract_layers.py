"""Layers made visible: as outputs beside the graph's own, or by a part of the graph, cut at its layers: its outputs are
some layers, its inputs the layers they are computed from.

A part is made of the protobuf, not of onnx_ir: it shares the file's external weights, and nothing else of it is read.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from andrea_export.core.errors import PassError

GIVEN = "given/"  # prefix of the inputs that stand for a layer which the part also computes


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A model of its own: ``outputs`` layers, ``graph_inputs`` under their own names, and ``layer_inputs`` by layer."""

    model: onnx.ModelProto
    outputs: tuple[str, ...]
    graph_inputs: tuple[str, ...]
    layer_inputs: Mapping[str, str]
    """Layer → the name of the input that stands for it."""


class LayerExtractor:
    """Extracts parts of one graph. ``layers`` are the values to cut at; ``types`` gives each one's ONNX type."""

    def __init__(self, model: onnx.ModelProto, types: Mapping[str, int]) -> None:
        self._model = model
        self._types = dict(types)
        self._nodes = list(model.graph.node)
        self._producer = {name: index for index, node in enumerate(self._nodes) for name in node.output if name}
        self._initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        self._inputs = {value.name: value for value in model.graph.input if value.name not in self._initializers}
        for value in (*model.graph.value_info, *model.graph.output):
            if value.name in self._types and value.type.tensor_type.elem_type:
                self._types[value.name] = value.type.tensor_type.elem_type

    def has(self, layer: str) -> bool:
        """Whether the graph computes this layer (or has it as a weight, or an input)."""
        return layer in self._producer

    def extract(self, outputs: Sequence[str], *, cut_at: Collection[str]) -> Part:
        """The part that computes ``outputs``; a value of ``cut_at`` is given wherever it is used, not computed for it.

        An output that is in ``cut_at`` is computed from its own inputs, and given to whatever else uses it.
        """
        needed: set[int] = set()
        given: dict[str, str] = {}
        graph_inputs: dict[str, onnx.ValueInfoProto] = {}
        initializers: dict[str, onnx.TensorProto] = {}
        to_visit = [self._producer[name] for name in outputs]
        while to_visit:
            index = to_visit.pop()
            if index in needed:
                continue
            needed.add(index)
            for name in self._nodes[index].input:
                if name in self._initializers:
                    initializers[name] = self._initializers[name]
                elif name in self._inputs:
                    graph_inputs[name] = self._inputs[name]
                elif name in cut_at and name in self._types:
                    given[name] = f"{GIVEN}{name}"
                elif name in self._producer:
                    to_visit.append(self._producer[name])
        nodes = [self._renamed(self._nodes[index], given) for index in sorted(needed)]
        graph = onnx.helper.make_graph(
            nodes,
            "part",
            [*graph_inputs.values(), *(self._value(given[name], name) for name in given)],
            [self._value(name, name) for name in outputs],
            list(initializers.values()),
        )
        model = onnx.helper.make_model(graph, opset_imports=self._model.opset_import, functions=self._model.functions)
        model.ir_version = self._model.ir_version
        return Part(model=model, outputs=tuple(outputs), graph_inputs=tuple(graph_inputs), layer_inputs=given)

    def _value(self, name: str, layer: str) -> onnx.ValueInfoProto:
        return onnx.helper.make_tensor_value_info(name, self._types[layer], None)

    @staticmethod
    def _renamed(node: onnx.NodeProto, given: Mapping[str, str]) -> onnx.NodeProto:
        if not any(name in given for name in node.input):
            return node
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [given.get(name, name) for name in node.input]
        return copy


class AddTaps(ir.passes.InPlacePass):
    """Every named layer's value is a graph output, after the outputs the graph already has.

    Requires: each name is a value of the graph. Ensures: the old outputs come first, unchanged, then the taps in the
    order given. Raises: PassError naming the layers that the graph does not have.
    """

    def __init__(self, layers: Sequence[str]) -> None:
        super().__init__()
        self.layers = tuple(layers)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        graph = model.graph
        values = {str(value.name): value for node in graph for value in node.outputs}
        missing = [layer for layer in self.layers if layer not in values]
        if missing:
            raise PassError(
                f"the graph has no value for {len(missing)} of {len(self.layers)} layers: {', '.join(missing[:8])}",
                hint="compare an ONNX file that andrea-export wrote",
            )
        present = {value.name for value in graph.outputs}
        added = [values[layer] for layer in self.layers if layer not in present]
        graph.outputs.extend(added)
        return ir.passes.PassResult(model, modified=bool(added))
