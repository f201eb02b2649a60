"""``andrea-export inspect``: what a file or folder is, without running it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from andrea_export.cli.options import JsonOption
from andrea_export.cli.output import emit_result, size
from andrea_export.core.lines import table

if TYPE_CHECKING:
    from andrea_export.inspection.facts import Inspection

_KINDS = {
    "checkpoint": "checkpoint",
    "published-checkpoint": "checkpoint (the published training layout)",
    "onnx": "ONNX file",
    "engine": "TensorRT engine",
    "plugin": "TensorRT plugin library",
    "bundle": "bundle",
}


_WHAT = "A checkpoint, an ONNX file, an engine, a plugin library or a bundle."
PathArgument = Annotated[Path, typer.Argument(help=_WHAT, metavar="PATH")]


def inspect(
    path: PathArgument,
    as_json: JsonOption = False,
) -> None:
    """Show what a file or bundle holds: architecture, parameter arithmetic, inputs, outputs, operators, who made it.

    Recognised by content, not by name. Needs no GPU and loads no weights.
    """
    from andrea_export.inspection.files import inspect_path, inspection_as_json

    inspection = inspect_path(path)
    emit_result(lambda: inspection_as_json(inspection), _lines(inspection), as_json=as_json)


def _lines(inspection: Inspection) -> Iterator[str]:
    family = f" ({inspection.family})" if inspection.family else ""
    yield f"{inspection.path}: {_KINDS[inspection.kind]}{family}, {size(inspection.num_bytes)}"
    if inspection.sha256:
        yield f"sha256 {inspection.sha256}"
    if inspection.weights:
        yield f"weights: {inspection.weights}"
    yield from (f"note: {text}" for text in inspection.notes)
    if config := inspection.config:
        yield ""
        yield f"architecture: {inspection.preset or 'no preset'}"
        yield (
            f"  {config.n_layer} blocks, d_model {config.d_model}, {config.n_head} heads of {config.d_head}, "
            f"mlp_dim {config.mlp_dim}, context {config.n_ctx}, vocabulary {config.vocab_size}, "
            f"LayerNorm epsilon {config.layer_norm_epsilon:g}, {config.variant}"
        )
        yield ""
        yield "parameters"
        yield from (f"  {line}" for line in inspection.arithmetic)
    elif inspection.num_parameters is not None:
        yield f"parameters: {inspection.num_parameters:,}"
    yield from _section("made by", inspection.made_by)
    for title, facts in (
        ("inputs", inspection.inputs),
        ("outputs", inspection.outputs),
        ("tensors", inspection.tensors),
    ):
        if facts:
            yield ""
            yield f"{title} ({len(facts)})"
            rows = [(fact.name, fact.dtype, f"[{', '.join(map(str, fact.dims))}]") for fact in facts]
            yield from (f"  {line}" for line in table(("name", "type", "shape"), rows, left=3))
    yield from _section("nodes", {key: str(value) for key, value in inspection.num_nodes.items()})
    if inspection.parts:
        yield ""
        yield "parts"
        for part in inspection.parts:
            yield f"  {part.path}: {_KINDS[part.kind]}, {size(part.num_bytes)}"
            if part.kind != "onnx":
                yield from (f"    {key}: {value}" for key, value in part.made_by.items())
            yield from (f"    note: {text}" for text in part.notes)


def _section(title: str, facts: object) -> Iterator[str]:
    if isinstance(facts, dict) and facts:
        width = max(len(key) for key in facts)
        yield ""
        yield title
        yield from (f"  {key.ljust(width)}  {value}" for key, value in facts.items())
