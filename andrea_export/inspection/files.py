"""Which kind a file is of, by what it begins with."""

from __future__ import annotations

import stat
from pathlib import Path

from andrea_export.core.errors import UsageError
from andrea_export.inspection.checkpoint_file import inspect_checkpoint, inspect_published
from andrea_export.inspection.engine_file import ELF_MAGIC, PLAN_MAGIC, inspect_engine, inspect_plugin
from andrea_export.inspection.facts import Inspection
from andrea_export.inspection.onnx_file import inspect_onnx, json_is_none_of_them
from andrea_export.weights.checkpoint import published_header


def inspect_file(path: Path) -> Inspection:
    """What a file is. Raises: UsageError for one that is none of the kinds, and the reader's own error if damaged."""
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise UsageError(
            f"{path} is neither a file nor a folder",
            hint="give a checkpoint, an ONNX file, an engine or a bundle",
        )
    # Also what /proc shows as a file of no bytes; reading one there may never end.
    if facts.st_size == 0:
        raise UsageError(f"{path} is empty", hint="give a checkpoint, an ONNX file, an engine or a bundle")
    with path.open("rb") as file:
        head = file.read(32)
    if head[:4] in PLAN_MAGIC:
        return inspect_engine(path)
    if head[:4] == ELF_MAGIC:
        return inspect_plugin(path)
    if head.lstrip()[:1] == b"{" and b"\0" not in head:
        raise json_is_none_of_them(path)
    if head[8:9] == b"{":  # safetensors: u64 header length, then JSON
        return inspect_checkpoint(path)
    if published_header(path) is not None:
        return inspect_published(path)
    return inspect_onnx(path)
