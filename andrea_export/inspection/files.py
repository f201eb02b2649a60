"""Asks the file of each kind what is in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from andrea_export.core.errors import UsageError
from andrea_export.inspection.checkpoint_file import inspect_checkpoint
from andrea_export.inspection.engine_file import inspect_engine
from andrea_export.inspection.facts import WHAT_CAN_BE_INSPECTED, Inspection
from andrea_export.inspection.json_file import refuse_json
from andrea_export.inspection.onnx_file import inspect_onnx
from andrea_export.inspection.plugin_file import inspect_plugin
from andrea_export.inspection.published_file import inspect_published
from andrea_export.weights.readers.recognise import FileKind, recognise

INSPECTORS: Mapping[FileKind, Callable[[Path], Inspection]] = {
    "checkpoint": inspect_checkpoint,
    "trace": inspect_checkpoint,  # its tensors, like those of any safetensors file
    "published-checkpoint": inspect_published,
    "onnx": inspect_onnx,
    "engine": inspect_engine,
    "plugin": inspect_plugin,
    "json": refuse_json,
}


def inspect_file(path: Path) -> Inspection:
    """What a file is. Raises: UsageError for one of no known kind, and the reader's own error if damaged."""
    kind = recognise(path)
    if kind == "empty":
        raise UsageError(f"{path} is empty", hint=WHAT_CAN_BE_INSPECTED)
    if kind not in INSPECTORS:
        raise UsageError(f"{path} is neither a file nor a folder", hint=WHAT_CAN_BE_INSPECTED)
    return INSPECTORS[kind](path)
