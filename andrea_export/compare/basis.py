"""What budgets are multiples of: the error torch itself makes in each precision, layer by layer, on the same inputs.

With weights at hand it is measured as the comparison goes; a trace carries what was measured when it was recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from andrea_export.compare.inputs import Arrays, Case
from andrea_export.compare.runs import ByCase
from andrea_export.compare.torch_run import TorchRun
from andrea_export.compare.trace_file import TraceFile
from andrea_export.core.dtypes import dtype_from_numpy
from andrea_export.core.errors import MismatchError
from andrea_export.core.names import Segment
from andrea_export.judge.budget import basis_of
from andrea_export.report.metrics import ErrorSums
from andrea_model.model import Andrea

LayerBasis = Mapping[str, Mapping[str, float]]


class BudgetBasis(Protocol):
    """Where budgets come from."""

    def measure(self, segment: Segment, reference: ByCase, given: Mapping[str, Arrays]) -> None:
        """Takes in the next segment: the reference's layers, and what a local run is given."""
        ...

    def accumulated(self, precision: str, segment: Segment) -> LayerBasis:
        """Layer of the last measured segment → basis of its accumulated error."""
        ...

    def local(self, precision: str, segment: Segment) -> LayerBasis:
        """The same of its local error."""
        ...


class MeasuredBasis:
    """Torch in every precision beside torch in fp64, over the same cases.

    Where the reference is not torch in fp64 itself its own precision's error counts too: a candidate may then be off by
    both, so every basis is the sum of the two.
    """

    def __init__(
        self, model: Andrea, cases: Sequence[Case], precisions: Iterable[str], *, reference_precision: str
    ) -> None:
        self._reference_precision = reference_precision
        names = dict.fromkeys([*precisions, *([] if reference_precision == "fp64" else [reference_precision])])
        self._runs = {name: TorchRun(model, cases, precision=name) for name in names if name != "fp64"}
        self._has_fp64 = "fp64" in names
        self.truth = TorchRun(model, cases, precision="fp64")
        self._accumulated: dict[str, dict[str, dict[str, float]]] = {}
        self._local: dict[str, dict[str, dict[str, float]]] = {}

    def measure(self, segment: Segment, reference: ByCase, given: Mapping[str, Arrays]) -> None:
        """See ``BudgetBasis``."""
        exact = self._reference_precision == "fp64"
        truth = reference if exact else self.truth.accumulated(segment)
        local_truth = reference if exact else self.truth.local(segment, given)
        self._accumulated = {name: _basis(segment, truth, run.accumulated(segment)) for name, run in self._runs.items()}
        self._local = {
            name: _basis(segment, local_truth, run.local(segment, given)) for name, run in self._runs.items()
        }
        if self._has_fp64:  # torch in fp64 is the truth itself: one rounding of fp64 is all that is left
            self._accumulated["fp64"] = _basis(segment, truth, truth)
            self._local["fp64"] = _basis(segment, local_truth, local_truth)

    def accumulated(self, precision: str, segment: Segment) -> LayerBasis:
        """See ``BudgetBasis``."""
        return self._with_reference(self._accumulated, precision)

    def local(self, precision: str, segment: Segment) -> LayerBasis:
        """See ``BudgetBasis``."""
        return self._with_reference(self._local, precision)

    def _with_reference(self, measured: Mapping[str, LayerBasis], precision: str) -> LayerBasis:
        own = measured[precision]
        if self._reference_precision == "fp64":
            return own
        theirs = measured[self._reference_precision]
        return {
            layer: {metric: value + theirs[layer][metric] for metric, value in basis.items()}
            for layer, basis in own.items()
            if layer in theirs
        }


class RecordedBasis:
    """What a trace says was measured when it was recorded."""

    def __init__(self, trace: TraceFile, precisions: Iterable[str]) -> None:
        self._basis = trace.header.basis
        missing = [name for name in dict.fromkeys(precisions) if name not in self._basis]
        if missing:
            raise MismatchError(
                f"trace {trace.path} holds no basis for budgets in {', '.join(missing)}",
                hint="record it from a checkpoint or a bundle, or compare with the checkpoint as the reference",
            )

    def measure(self, segment: Segment, reference: ByCase, given: Mapping[str, Arrays]) -> None:
        """Nothing is left to measure."""

    def accumulated(self, precision: str, segment: Segment) -> LayerBasis:
        """See ``BudgetBasis``."""
        return self._basis[precision].accumulated

    def local(self, precision: str, segment: Segment) -> LayerBasis:
        """See ``BudgetBasis``."""
        return self._basis[precision].local

    def language_model(self, precision: str) -> Mapping[str, float]:
        """Case → torch's own largest error of a logit."""
        return self._basis[precision].language_model


def _basis(segment: Segment, truth: ByCase, found: ByCase) -> dict[str, dict[str, float]]:
    basis = {}
    for layer in segment.layers:
        error, dtype = ErrorSums(), ""
        for case, layers in found.items():
            if layer in layers and layer in truth[case]:
                error.add(truth[case][layer], layers[layer])
                dtype = dtype_from_numpy(layers[layer].dtype).name
        if dtype:
            basis[layer] = basis_of(error, dtype)
    return basis
