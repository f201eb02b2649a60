"""The weights in a bundle's ONNX file, against those it was exported from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from andrea_export.core.errors import ExportError
from andrea_export.graph.parameters import problems_of_parameters
from andrea_export.report.schema import Check
from andrea_model.config import AndreaConfig
from andrea_model.model import parameter_shapes


def check_weights(model: Path, expected: Mapping[str, str], config: AndreaConfig) -> Check:
    """Whether the ONNX file's parameters are the model's and no others, bit for bit; the first layer at fault is named.

    ``expected``: parameter name → sha256. A file that cannot be read fails.
    """
    try:
        problems = problems_of_parameters(model, expected, config)
    except ExportError as error:
        return Check(name="weights", verdict="fail", detail=str(error))
    if not problems:
        return Check(
            name="weights",
            verdict="pass",
            detail=f"all {len(expected)} parameters in {model.name} are bit for bit the model's",
        )
    listed = ", ".join(f"{name} ({problem})" for name, problem in list(problems.items())[:8])
    more = f" and {len(problems) - 8} more" if len(problems) > 8 else ""
    first = next(iter(problems))
    return Check(
        name="weights",
        verdict="fail",
        detail=f"{len(problems)} of {len(expected)} parameters in {model.name} are not the model's: {listed}{more}",
        layer=first.rpartition(".")[0] if first in parameter_shapes(config) else None,
    )
