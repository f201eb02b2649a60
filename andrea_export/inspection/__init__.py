"""What one file or folder is: a checkpoint, an ONNX file, an engine or a bundle, recognised by content, not by name.

Reads headers and graphs, never a whole set of weights into memory; needs no GPU and no torch. Returns facts; the cli
renders them. A fact that cannot be told is None, and is shown as unknown.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from andrea_export.core.errors import UsageError
from andrea_export.inspection.arithmetic import parameter_counts
from andrea_export.inspection.facts import WHAT_CAN_BE_INSPECTED, Inspection
from andrea_export.inspection.files import inspect_bundle, inspect_file

__all__ = ["Inspection", "inspect_path", "inspection_as_json"]


def inspect_path(path: Path) -> Inspection:
    """What the path is. Raises: UsageError for a path that is missing or of no known kind, and the reader's own error
    for one that is damaged."""
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder", hint=WHAT_CAN_BE_INSPECTED)
    return inspect_bundle(path) if path.is_dir() else inspect_file(path)


def inspection_as_json(inspection: Inspection) -> dict[str, Any]:
    """The inspection as plain JSON values, the arithmetic included."""
    document = asdict(inspection)
    document["arithmetic"] = list(inspection.arithmetic)
    if inspection.config is not None:
        counts = parameter_counts(inspection.config)
        document["parameters"] = {
            "exact": counts.exact,
            "untied_without_biases_and_layer_norms": counts.untied_matrices,
            "untied_with_everything": counts.untied_everything,
            "trunk": counts.trunk,
            "mlp_matrices": counts.all_mlp_matrices,
            "token_embedding": counts.token_embedding,
            "position_embedding": counts.position_embedding,
            "biases": counts.biases,
            "layer_norms": counts.layer_norms,
        }
    document["parts"] = [inspection_as_json(part) for part in inspection.parts]
    return document
