"""Logits for the last positions only: a prompt of 1,024 tokens needs one row of logits, not 1,024."""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir

from andrea_export.core.errors import PassError
from andrea_export.core.names import KEEP, MODULE_KEY
from andrea_export.graph.passes.graph_edits import HINT, constant, graph_output, node_beside

_BLOCK = re.compile(r"blocks\.(\d+)\.")
_TO_THE_END = np.iinfo(np.int64).max  # Slice's own way to say so


class LogitsToKeep(ir.passes.InPlacePass):
    """A new input ``logits_to_keep`` int64 ``[1]``, 1 to S: how many of the last positions get logits.

    After the last block's attention no position sees another one. So both streams are cut there, what attention gives
    and what it is added to, and three of that block's four linear layers, the final norm and the head see the kept
    positions alone.

    Requires: the nodes ``attn.context`` and ``attn_residual`` of the last block, the latter an addition to what
    ``attn.proj`` gives, and an output ``logits``. Ensures: the input is there, no attention reads what was cut, and the
    logits are ``[batch, kept, V]``. Raises: PassError.
    """

    def requires(self, model: ir.Model) -> None:
        """Checks that both streams and the logits are there, and the input is not."""
        graph_output(model.graph, "logits")
        _last_attention(model.graph)
        if any(value.name == KEEP for value in model.graph.inputs):
            raise PassError(f"the graph already has the input {KEEP}")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Cuts both streams after the last attention."""
        graph = model.graph
        context, residual, added_to = _last_attention(graph)
        keep = ir.Value(name=KEEP, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT64))
        graph.inputs.insert(_before_the_cache(graph), keep)
        start = node_beside(context, "Neg", [keep], f"{KEEP}/start")
        graph.insert_after(context, start)
        bounds = [
            start.outputs[0],
            constant(graph, f"{KEEP}.end", np.array([_TO_THE_END], np.int64)),
            constant(graph, f"{KEEP}.axis", np.array([1], np.int64)),
        ]
        streams = [
            (context.outputs[0], list(context.outputs[0].uses())),
            (added_to, [use for use in added_to.uses() if use.node is residual]),
        ]
        for stream, uses in streams:
            cut = node_beside(context, "Slice", [stream, *bounds], f"{stream.name}/kept")
            graph.insert_after(start, cut)
            for use in uses:
                use.node.replace_input_with(use.idx, cut.outputs[0])
        logits = graph_output(graph, "logits")
        assert logits.shape is not None
        logits.shape = ir.Shape([logits.shape[0], "kept", logits.shape[2]])
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """Checks the input, and that no attention comes after the cut."""
        reached = [use.node for value in model.graph.inputs if value.name == KEEP for use in value.uses()]
        if not reached:
            raise PassError(f"the graph does not read {KEEP}")
        for node in reached:  # grows as it is walked
            if node.op_type in ("Attention", "GroupQueryAttention"):
                raise PassError(f"{node.name} comes after the positions were cut")
            reached += [use.node for value in node.outputs for use in value.uses() if use.node not in reached]


def _last_attention(graph: ir.Graph) -> tuple[ir.Node, ir.Node, ir.Value]:
    """The last block's node that gives attention's result, the one that adds it to the residual stream, and that."""
    blocks = {int(found[1]) for node in graph if (found := _BLOCK.match(node.metadata_props.get(MODULE_KEY, "")))}
    last = f"blocks.{max(blocks, default=0)}"
    nodes = {str(node.name): node for node in graph}
    context, residual = (nodes.get(f"{last}.{layer}") for layer in ("attn.context", "attn_residual"))
    if context is None or residual is None:
        raise PassError(f"the graph has no {last}.attn.context or no {last}.attn_residual", hint=HINT)
    added_to = [value for value in residual.inputs if value is not None and not _is_of(value, f"{last}.attn.proj")]
    if len(residual.inputs) != 2 or len(added_to) != 1:
        raise PassError(f"{last}.attn_residual does not add one value to what {last}.attn.proj gives", hint=HINT)
    return context, residual, added_to[0]


def _is_of(value: ir.Value, module: str) -> bool:
    producer = value.producer()
    return producer is not None and producer.metadata_props.get(MODULE_KEY) == module


def _before_the_cache(graph: ir.Graph) -> int:
    names = [str(value.name) for value in graph.inputs]
    return next((i for i, name in enumerate(names) if name.startswith("past_key_values.")), len(names))
