"""The JSON files of this project: none is inspected by itself, and each says what to inspect instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

from andrea_export.core.errors import UsageError
from andrea_export.inspection.facts import WHAT_CAN_BE_INSPECTED

_LARGEST_JSON = 1 << 28


def refuse_json(path: Path) -> NoReturn:
    """Raises UsageError for a JSON file, which may well be one that this program wrote."""
    try:
        content = json.loads(path.read_bytes()) if path.stat().st_size < _LARGEST_JSON else None
    except (ValueError, RecursionError):
        content = None
    content = content if isinstance(content, dict) else {}
    schema = str(content.get("schema"))
    if schema.startswith("andrea-export/manifest/"):
        raise UsageError(f"{path} is the manifest of a bundle", hint=f"inspect the bundle itself: {path.parent}")
    if schema.startswith("andrea-export/report/"):
        raise UsageError(
            f"{path} is the report of a validation, verdict {content.get('verdict')}",
            hint=f"it is text; inspect the bundle it lies in: {path.parent}",
        )
    raise UsageError(
        f"{path} begins like JSON and is not a checkpoint, ONNX file, engine or bundle",
        hint=WHAT_CAN_BE_INSPECTED,
    )
