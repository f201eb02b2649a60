"""Attention over one preallocated cache: new keys and values are appended in place, the past is never copied."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from andrea_export.core.errors import PassError
from andrea_export.core.names import SEQLENS, TOTAL
from andrea_export.graph.passes.graph_edits import (
    HINT,
    MS_DOMAIN,
    check_none_left,
    drop_dead_nodes,
    graph_input,
    node_beside,
    nodes_of,
    producer_of,
    replace_output,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    """One block's attention as the canonical graph spells it."""

    node: ir.Node
    qkv: ir.Value
    past: tuple[ir.Value, ir.Value]
    present: tuple[ir.Value, ir.Value]
    context: ir.Value


class SharedCache(ir.passes.InPlacePass):
    """Each block's split, head transposes, concatenations and attention are one ``GroupQueryAttention``.

    Past and present are ``[B, H, capacity, D]``. Bound to one buffer they are the same memory, and a step writes its
    S new keys and values behind those that are there. Two inputs replace ``attention_mask``: ``seqlens_k`` int32
    ``[B]``, each row's number of real tokens less one, and ``total_sequence_length`` int32 ``[1]``, the longest row's
    number of tokens. Rows start at position 0 of their buffer; padding is on the right, behind a row's tokens.

    Requires: canonical attention, without a bias other than qkv's own. Ensures: no Attention node, one
    GroupQueryAttention a block. Raises: PassError naming what does not fit. Source:
    https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.GroupQueryAttention
    """

    def requires(self, model: ir.Model) -> None:
        """Checks every attention's surroundings."""
        attentions = nodes_of(model, "Attention")
        if not attentions:
            raise PassError("the graph has no Attention node", hint=HINT)
        for node in attentions:
            _site(model.graph, node)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replaces each attention, then drops the mask and what computed it."""
        graph = model.graph
        sites = [_site(graph, node) for node in nodes_of(model, "Attention")]
        mask = graph_input(graph, "attention_mask")
        seqlens = ir.Value(name=SEQLENS, shape=ir.Shape(["batch"]), type=ir.TensorType(ir.DataType.INT32))
        total = ir.Value(name=TOTAL, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT32))
        for site in sites:
            _replace(graph, site, seqlens, total)
        drop_dead_nodes(graph)
        if mask.uses():
            raise PassError(f"attention_mask is still read by {', '.join(str(use.node.name) for use in mask.uses())}")
        graph.inputs[:] = [
            replacement for value in graph.inputs for replacement in ((seqlens, total) if value is mask else (value,))
        ]
        model.opset_imports[MS_DOMAIN] = 1
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """Checks that every block's cache is shared."""
        check_none_left(model, "Attention")
        num_shared = len(nodes_of(model, "GroupQueryAttention", MS_DOMAIN))
        num_caches = sum(str(value.name).startswith("past_key_values.") for value in model.graph.inputs)
        if 2 * num_shared != num_caches:
            raise PassError(f"{num_shared} GroupQueryAttention nodes for {num_caches} past keys and values")


def _site(graph: ir.Graph, node: ir.Node) -> _Site:
    """The parts of one attention. Raises PassError where it is not the canonical one."""
    q, k, v, _mask = node.inputs
    present, past, sources = [], [], [_heads_from(q)]
    for value in (k, v):
        concat = producer_of(value, "Concat")
        before, new = concat.inputs
        assert value is not None and before is not None
        if before not in graph.inputs:
            raise PassError(
                f"'{node.name}': the past of '{value.name}' is '{before.name}', which is not an input of the graph"
            )
        present.append(value)
        past.append(before)
        sources.append(_heads_from(new))
    splits = {split for split, _ in sources}
    if len(splits) != 1 or [index for _, index in sources] != [0, 1, 2]:
        raise PassError(f"'{node.name}': q, k and v are not the three parts of one qkv, in this order")
    (split,) = splits
    qkv = split.inputs[0]
    (transpose,) = (use.node for use in node.outputs[0].uses())
    (reshape,) = (use.node for use in transpose.outputs[0].uses())
    if qkv is None or (transpose.op_type, reshape.op_type) != ("Transpose", "Reshape"):
        raise PassError(f"'{node.name}': its heads are not merged by Transpose and Reshape")
    return _Site(
        node=node,
        qkv=qkv,
        past=(past[0], past[1]),
        present=(present[0], present[1]),
        context=reshape.outputs[0],
    )


def _heads_from(value: ir.Value | None) -> tuple[ir.Node, int]:
    """The Split a ``[B, H, S, D]`` value was cut from, and which of its outputs it is."""
    reshape = producer_of(producer_of(value, "Transpose").inputs[0], "Reshape")
    part = reshape.inputs[0]
    split = producer_of(part, "Split")
    assert part is not None
    return split, list(split.outputs).index(part)


def _replace(graph: ir.Graph, site: _Site, seqlens: ir.Value, total: ir.Value) -> None:
    key_shape = site.past[0].shape
    num_heads = None if key_shape is None else key_shape[1]
    if not isinstance(num_heads, int):
        raise PassError(f"the number of heads is not known: input '{site.past[0].name}' has H = {num_heads}")
    for value in (*site.past, *site.present):
        assert value.shape is not None
        value.shape = ir.Shape([value.shape[0], value.shape[1], "capacity", value.shape[3]])
    name = str(site.context.name)
    node = node_beside(
        site.node,
        "GroupQueryAttention",
        [site.qkv, None, None, *site.past, seqlens, total],
        name,
        domain=MS_DOMAIN,
        attributes={"num_heads": num_heads, "kv_num_heads": num_heads},
        outputs=[f"{name}:{index}" for index in range(3)],
        dtype=ir.DataType.FLOAT,
    )
    graph.insert_after(site.node, node)
    for old, new in zip((site.context, *site.present), node.outputs, strict=True):
        replace_output(graph, old, new)
