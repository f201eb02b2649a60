"""What budgets are multiples of: the error torch itself makes where it rounds as a candidate does, on the same inputs.

With weights at hand it is measured as the comparison goes; a trace carries what was measured when it was recorded.
"""

from collections.abc import Iterable, Mapping, Sequence

from andrea_export.compare.inputs import Arrays, Case
from andrea_export.compare.language.figures import max_abs_errors
from andrea_export.compare.language.suite import Logits, Predictions, Suite, run_of_text
from andrea_export.compare.runs import ByCase, LayerRun, Rounding, rounding_of
from andrea_export.compare.torch_run import TorchRun
from andrea_export.compare.trace_file import TraceFile
from andrea_export.core.dtypes import dtype_from_numpy
from andrea_export.core.errors import MismatchError
from andrea_export.core.names import Segment
from andrea_export.core.precision import PRECISIONS
from andrea_export.judge.budget import basis_of
from andrea_export.report.metrics import ErrorSums
from andrea_export.sessions.torch_reference import TorchSession
from andrea_model.model import Andrea

LayerBasis = Mapping[str, Mapping[str, float]]

TRUTH = next(rounding_of(name) for name, row in PRECISIONS.items() if row.is_truth)


class MeasuredBasis:
    """Torch with every rounding beside torch in fp64, over the same cases; ``rounding`` is the name of one of them.

    ``reference`` is the reference's own rounding, None where it is the truth itself. Its error counts too: a candidate
    may then be off by both, so every basis is the sum of the two.
    """

    def __init__(
        self, model: Andrea, cases: Sequence[Case], roundings: Iterable[Rounding], *, reference: Rounding | None
    ) -> None:
        self._model = model
        self._reference = reference
        self._roundings = {own.name: own for own in [*roundings, *([reference] if reference else [])]}
        self._runs = {
            own.name: TorchRun(model, cases, precision=own.precision, convert=own.convert)
            for own in self._roundings.values()
        }
        # The truth over the same cases, whose layers can be fed.
        self.truth: LayerRun | None = TorchRun(model, cases, precision=TRUTH.precision)
        self._true_logits: Logits | None = None
        self._language_model: dict[str, Mapping[str, float]] = {}

    def measure(self, segment: Segment, reference: ByCase, given: Mapping[str, Arrays]) -> None:
        """Takes in the next segment: the reference\'s layers, and what a local run is given."""
        assert self.truth is not None
        self._segment, self._given = segment, given
        self._truth = reference if self._reference is None else self.truth.accumulated(segment)
        self._local_truth = reference if self._reference is None else None
        found = {name: run.accumulated(segment) for name, run in self._runs.items()}
        self._accumulated = {name: _basis(segment, self._truth, layers) for name, layers in found.items()}
        self._local: dict[str, LayerBasis] = {}

    def accumulated(self, rounding: str) -> LayerBasis:
        """Layer of the last measured segment → basis of its accumulated error."""
        own = self._accumulated[rounding]
        return own if self._reference is None else _sum(own, self._accumulated[self._reference.name])

    def local(self, rounding: str) -> LayerBasis:
        """The same of its local error."""
        own = self._local_of(rounding)
        return own if self._reference is None else _sum(own, self._local_of(self._reference.name))

    def language_model(self, rounding: str, suite: Suite, reference: Predictions) -> Mapping[str, float]:
        """Case → basis of the largest error of a logit; ``reference``: what that predicts. Raises: RunError."""
        if self._true_logits is None:
            is_truth = self._reference is None
            self._true_logits = reference.logits[suite.longest_case] if is_truth else self._run_of_text(TRUTH, suite)
        own = self._language_model_of(rounding, suite)
        if self._reference is None:
            return own
        theirs = self._language_model_of(self._reference.name, suite)
        return {case: error + theirs[case] for case, error in own.items()}

    def _local_of(self, rounding: str) -> LayerBasis:
        """Measured when it is first asked for: a candidate that cannot be fed needs none."""
        if rounding not in self._local:
            if self._local_truth is None:
                assert self.truth is not None
                self._local_truth = self.truth.local(self._segment, self._given)
            found = self._runs[rounding].local(self._segment, self._given)
            self._local[rounding] = _basis(self._segment, self._local_truth, found)
        return self._local[rounding]

    def _language_model_of(self, rounding: str, suite: Suite) -> Mapping[str, float]:
        if rounding not in self._language_model:
            assert self._true_logits is not None
            logits = self._run_of_text(self._roundings[rounding], suite)
            self._language_model[rounding] = max_abs_errors(logits, self._true_logits, suite)
        return self._language_model[rounding]

    def _run_of_text(self, rounding: Rounding, suite: Suite) -> Logits:
        model = rounding.convert(self._model, "") if rounding.convert is not None else self._model
        with TorchSession(model, precision=rounding.precision) as session:
            return run_of_text(session, suite, rounding.precision)


class RecordedBasis:
    """What a trace says was measured when it was recorded. There are no weights to run the truth with."""

    truth: LayerRun | None = None

    def __init__(self, trace: TraceFile, roundings: Iterable[Rounding]) -> None:
        self._basis = trace.header.basis
        missing = [name for name in dict.fromkeys(own.name for own in roundings) if name not in self._basis]
        if missing:
            raise MismatchError(
                f"trace {trace.path} holds no basis for budgets in {', '.join(missing)}",
                hint="record it from a checkpoint or a bundle, or compare with the checkpoint as the reference",
            )

    def measure(self, segment: Segment, reference: ByCase, given: Mapping[str, Arrays]) -> None:
        """Nothing is left to measure."""

    def accumulated(self, rounding: str) -> LayerBasis:
        return self._basis[rounding].accumulated

    def local(self, rounding: str) -> LayerBasis:
        return self._basis[rounding].local

    def language_model(self, rounding: str, suite: Suite, reference: Predictions) -> Mapping[str, float]:
        return self._basis[rounding].language_model


BudgetBasis = MeasuredBasis | RecordedBasis
"""Where budgets come from."""


def _sum(own: LayerBasis, theirs: LayerBasis) -> LayerBasis:
    return {
        layer: {metric: value + theirs[layer][metric] for metric, value in basis.items()}
        for layer, basis in own.items()
        if layer in theirs
    }


def _basis(segment: Segment, truth: ByCase, found: ByCase) -> LayerBasis:
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
