"""A layer's values beside the reference's as a row of the report, not judged yet."""

from collections.abc import Mapping, Sequence
from typing import Any

from andrea_export.compare.inputs import Case
from andrea_export.compare.runs import ByCase
from andrea_export.core.dtypes import DTYPES
from andrea_export.core.precision import PRECISIONS
from andrea_export.report.metrics import LayerErrors
from andrea_export.report.schema import LayerRow, LocalError


class Rows:
    """Makes the rows of one candidate, whose types are those of its precision."""

    def __init__(self, candidate: str, precision: str, cases: Sequence[Case]) -> None:
        self._candidate = candidate
        self._precision = PRECISIONS[precision]
        self._positions = {case.name: case.token_positions for case in cases}

    def row(self, layer: str, reference: ByCase, found: ByCase, basis: Mapping[str, float]) -> LayerRow:
        """The layer's accumulated error over all cases that ran, or the problem that leaves it without one.

        A budget is that of the type the precision has for the layer, not of the type that came back.
        """
        errors, dtype = LayerErrors(), self._precision.layer_dtype(layer)
        problem = "" if found else "missing: the candidate ran no case"
        for case, layers in found.items():
            problem = _problem(layer, reference[case], layers, dtype)
            if problem:
                break
            errors.add(case, reference[case][layer], layers[layer], dtype=dtype, positions=self._positions[case])
        if problem:
            return LayerRow(
                name=layer, candidate=self._candidate, verdict="fail", metrics={}, budget={}, problem=problem
            )
        return LayerRow(
            name=layer,
            candidate=self._candidate,
            verdict="not-measured",  # until it is judged
            metrics=errors.as_metrics(),
            budget={},
            basis=basis,
            dtype=errors.dtype,
            worst=errors.worst,
            ulp_histogram=errors.ulp_histogram(),
            spread=errors.spread(),
        )

    def local_error(
        self, row: LayerRow, expected: ByCase, found: ByCase, basis: Mapping[str, float], note: str
    ) -> LocalError | None:
        """The layer's local error, or why it has none; None where the row's problem says so already.

        ``note`` says how it was measured, where that is not the plain way.
        """
        errors, layer, dtype = LayerErrors(), row.name, self._precision.layer_dtype(row.name)
        for case, layers in found.items():
            if layer not in layers or layer not in expected.get(case, {}):
                continue
            value, truth = layers[layer], expected[case][layer]
            if value.shape != truth.shape or value.dtype != DTYPES[dtype].numpy:
                return None
            errors.add(case, truth, value, dtype=dtype)
        if not errors.dtype:
            reason = "the layer is missing" if row.problem else "the candidate cannot be fed, layer by layer"
            return LocalError(verdict="not-measured", reason=reason)
        return LocalError(
            verdict="not-measured",  # until it is judged
            metrics=errors.as_metrics(),
            basis=basis,
            worst=errors.worst,
            reason=note,
        )


def _problem(layer: str, reference: Mapping[str, Any], found: Mapping[str, Any], dtype: str) -> str:
    """Why the layer's values cannot be compared; nothing where they can."""
    if layer not in reference:
        return "not measured: the reference has no such layer"
    if layer not in found:
        return "missing: the candidate has no such layer"
    value, expected = found[layer], reference[layer]
    if value.shape != expected.shape:
        return f"has shape {list(value.shape)}, expected {list(expected.shape)}"
    return "" if value.dtype == DTYPES[dtype].numpy else f"has type {value.dtype}, expected {dtype}"
