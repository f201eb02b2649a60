"""A recorded run: it has every layer and prediction it was recorded with, and cannot be run again."""

from collections.abc import Iterable, Sequence
from typing import NoReturn

import numpy as np

from andrea_export.compare.basis import RecordedBasis
from andrea_export.compare.inputs import Case
from andrea_export.compare.language.suite import Predictions, Suite
from andrea_export.compare.runs import ByCase, LayerRun, LocalErrors, Rounding, Visible, outputs_alone
from andrea_export.compare.sources.base import Identity, Source
from andrea_export.compare.trace_file import TraceFile
from andrea_export.core.errors import MismatchError, TraceError
from andrea_export.core.hashing import sha256_of
from andrea_export.core.names import Segment


class TraceRun(LayerRun):
    """The layers of a trace, read segment by segment."""

    def __init__(self, trace: TraceFile, visible: Visible) -> None:
        super().__init__(visible)
        self._trace = trace

    def accumulated(self, segment: Segment) -> ByCase:
        """See ``LayerRun``. Raises TraceError where a tensor is not what was recorded."""
        return self._trace.layers(segment.layers)


class TraceSource(Source):
    """A recorded run."""

    def __init__(self, trace: TraceFile) -> None:
        header = trace.header
        self.recording: TraceFile = trace
        has_layers = len(header.layers) > 2 * header.config.n_layer + 1  # more than logits, keys and values
        self._visible = Visible(local_errors=LocalErrors.FED_BACK) if has_layers else outputs_alone(header.config)
        self.identity = Identity(
            name=header.name,
            kind="trace",
            precision=header.precision,
            config=header.config,
            weights=header.weights,
            origin=header.origin,
            provenance={
                **header.provenance,
                "trace": trace.path.name,
                "trace_sha256": sha256_of(trace.path),
                "recorded_by": f"andrea-export {header.andrea_export}",
            },
            is_of_one_model=True,
        )

    def layers(self, cases: Sequence[Case]) -> LayerRun:
        return TraceRun(self.recording, self._visible)

    def session(self) -> NoReturn:
        """Raises MismatchError: what was recorded cannot be run."""
        raise MismatchError(f"trace {self.recording.path} is a recorded run, which cannot be run again")

    def budgets(self, roundings: Iterable[Rounding], cases: Sequence[Case]) -> RecordedBasis:
        """What was measured when it was recorded. Raises: MismatchError."""
        return RecordedBasis(self.recording, roundings)

    def check_as_reference(self, segment: Segment, layers: ByCase) -> None:
        """Raises TraceError where it holds Inf: nothing can be measured against it."""
        for case, found in layers.items():
            for name, value in found.items():
                if value.dtype != np.bool_ and np.isinf(value).any():
                    raise TraceError(
                        f"the reference trace has Inf in {name} ({case}): nothing can be measured against it",
                        hint="record a run that is sound",
                    )

    def reference_predictions(self, suite: Suite) -> Predictions:
        """What it predicted. Raises: MismatchError where that was not recorded."""
        recorded = self.recording.predictions
        if recorded is None:
            raise MismatchError(
                f"reference trace {self.recording.path} holds no predictions",
                hint="record it with its language model, or compare with --no-language-model",
            )
        return recorded

    def candidate_predictions(self, suite: Suite) -> Predictions:
        """What it predicted; where that was not recorded, every case says so."""
        reason = "the trace was recorded without its language model"
        return self.recording.predictions or Predictions(problems=dict.fromkeys(suite.cases, reason))
