"""Logits for the last positions only: a prompt of 1,024 tokens needs one row of logits, not 1,024."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from andrea_export.canonical import MODULE_KEY
from andrea_export.errors import PassError
from andrea_export.ort_cpu_files import KEEP
from andrea_export.passes.graph_edits import constant

_TO_THE_END = np.iinfo(np.int64).max  # Slice's own way to say so


class LogitsToKeep(ir.passes.InPlacePass):
    """A new input ``logits_to_keep`` int64 ``[1]``, 1 to S: how many of the last positions get a final norm and logits.

    Requires: a node of the module ``ln_f`` and an output ``logits``. Ensures: the input is there, and the logits are
    ``[batch, kept, V]``. Raises: PassError.
    """

    def requires(self, model: ir.Model) -> None:
        """Checks that the final norm is there, and the input is not."""
        _final_norm(model.graph)
        if any(value.name == KEEP for value in model.graph.inputs):
            raise PassError(f"the graph already has the input {KEEP}")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Cuts the residual stream before the final norm."""
        graph = model.graph
        norm = _final_norm(graph)
        keep = ir.Value(name=KEEP, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT64))
        graph.inputs.insert(_before_the_cache(graph), keep)
        props = {MODULE_KEY: "ln_f"}
        start = ir.Node("", "Neg", [keep], name="ln_f/start", metadata_props=props)
        end = constant(graph, f"{KEEP}.end", np.array([_TO_THE_END], np.int64))
        axis = constant(graph, f"{KEEP}.axis", np.array([1], np.int64))
        cut = ir.Node(
            "", "Slice", [norm.inputs[0], start.outputs[0], end, axis], name="ln_f/kept", metadata_props=dict(props)
        )
        for node in (start, cut):
            node.outputs[0].name = node.name
        graph.insert_before(norm, [start, cut])
        norm.replace_input_with(0, cut.outputs[0])
        logits = _logits(graph)
        assert logits.shape is not None
        logits.shape = ir.Shape([logits.shape[0], "kept", logits.shape[2]])
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """Checks the input."""
        if not any(value.name == KEEP and value.uses() for value in model.graph.inputs):
            raise PassError(f"the graph does not read {KEEP}")


def _final_norm(graph: ir.Graph) -> ir.Node:
    _logits(graph)
    for node in graph:
        if node.op_type == "LayerNormalization" and node.metadata_props.get(MODULE_KEY) == "ln_f":
            return node
    raise PassError("the graph has no LayerNormalization of the module ln_f")


def _logits(graph: ir.Graph) -> ir.Value:
    for value in graph.outputs:
        if value.name == "logits":
            return value
    raise PassError("the graph has no output 'logits'")


def _before_the_cache(graph: ir.Graph) -> int:
    names = [str(value.name) for value in graph.inputs]
    return next((i for i, name in enumerate(names) if name.startswith("past_key_values.")), len(names))
