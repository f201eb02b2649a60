"""What a source is, whatever it is made of, and whether two of them can be compared."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from andrea_export.compare.basis import BudgetBasis, MeasuredBasis
from andrea_export.compare.inputs import Case
from andrea_export.compare.language.suite import Predictions, Suite, candidate_predictions, reference_predictions
from andrea_export.compare.runs import ByCase, LayerRun, Rounding, rounding_of
from andrea_export.compare.trace_file import TraceFile
from andrea_export.core.errors import MismatchError
from andrea_export.core.names import Segment
from andrea_export.core.profile import Profile
from andrea_export.sessions.base import Session
from andrea_export.tokens.tokenizer import Tokenizer
from andrea_export.weights.origin import WeightsOrigin
from andrea_model.config import AndreaConfig
from andrea_model.model import Andrea

WHAT_CAN_BE_COMPARED = "give a checkpoint, an ONNX file, a bundle (DIR or DIR#tensorrt-rtx-fp16) or a recorded trace"
"""The hint to whoever gave something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a source is, as a report states it."""

    name: str
    """``torch-fp64``, ``onnxruntime-cpu``, ``tensorrt-rtx-fp16``; a trace has the name of what was recorded."""
    kind: str
    """For readers; whoever compares asks what a source can do."""
    precision: str
    config: AndreaConfig
    weights: str
    """Where the weights came from, in words."""
    origin: str
    """The same as one key: the checkpoint's sha256, or the seed and preset."""
    provenance: Mapping[str, str]
    is_in_manifest: bool = False
    """Whether its bundle's manifest states its provenance, and a report need not."""
    is_of_one_model: bool = False
    """Whether it can only be compared with a source of the same origin."""

    @property
    def stated_provenance(self) -> Mapping[str, str]:
        """As a candidate of a report has it."""
        return {} if self.is_in_manifest else {"kind": self.kind, "weights": self.weights, **self.provenance}


class Source(Protocol):
    """Something that can be compared.

    A kind of source is a class in a file of its own that says here what it can do; nobody asks which kind it is.
    """

    identity: Identity
    facts: Mapping[str, object] = MappingProxyType({})
    """What else is known of it, for the report."""
    profile: Profile | None = None
    """The shapes it can run, where it cannot run all."""
    is_truth: bool = False
    """Whether it is what errors are measured against, torch in fp64: it can be fed, and it has no error of its own."""
    reruns_as_shipped: bool = False
    """Whether its layers are had by cutting it up or adding outputs, so that it is run once more, as it ships."""
    tokenizer: Tokenizer | None = None
    """How its text becomes tokens; None where nothing says."""
    recording: TraceFile | None = None
    """The recorded run that it is: it brings its own inputs, and what it predicted."""

    @property
    def rounding(self) -> Rounding:
        """How torch rounds to show the error this source may have."""
        return rounding_of(self.identity.precision)

    def check_runnable(self) -> None:
        """Raises BackendUnavailable where it is known, before anything is run, that it cannot run on this machine."""
        return

    @abstractmethod
    def layers(self, cases: Sequence[Case]) -> LayerRun:
        """A run over the cases. Raises: BackendUnavailable, RunError, TraceError."""

    @abstractmethod
    def session(self) -> Session:
        """The whole model as it ships. Raises: BackendUnavailable, RunError; MismatchError where it cannot be run."""

    def weights(self) -> Andrea | None:
        """The torch model with the source's weights, from which budgets derive; None where there is none."""
        return None

    def budgets(self, roundings: Iterable[Rounding], cases: Sequence[Case]) -> BudgetBasis:
        """What budgets are multiples of where this source is the reference, for candidates that round so.

        Raises: MismatchError where it has nothing to derive them from.
        """
        basis = self.measured_basis(roundings, cases)
        if basis is None:
            raise MismatchError(
                f"reference {self.identity.name} holds no fp32 weights, so there is nothing to derive budgets from",
                hint="use a checkpoint, the bundle's fp32 ONNX file or a recorded trace as the reference",
            )
        return basis

    def measured_basis(self, roundings: Iterable[Rounding], cases: Sequence[Case]) -> MeasuredBasis | None:
        """The same, measured with its weights; None where it has none."""
        model = self.weights()
        if model is None:
            return None
        return MeasuredBasis(model, cases, roundings, reference=None if self.is_truth else self.rounding)

    def check_as_reference(self, segment: Segment, layers: ByCase) -> None:
        """Raises TraceError for layers of its own that nothing can be measured against."""
        return

    def reference_predictions(self, suite: Suite) -> Predictions:
        """What it predicts as the reference. Raises: BackendUnavailable, RunError, MismatchError."""
        with self.session() as session:
            return reference_predictions(session, suite, self.identity.precision)

    def candidate_predictions(self, suite: Suite) -> Predictions:
        """What it predicts as a candidate, each case really run. Raises: BackendUnavailable, RunError."""
        with self.session() as session:
            return candidate_predictions(session, suite, self.identity.precision)

    def facts_of_outputs(self, cases: Sequence[Case], reference: ByCase, found: ByCase) -> Mapping[str, object]:
        """What else its outputs say beside the reference's, for the report."""
        return {}


def same_model(reference: Identity, candidate: Identity) -> None:
    """Raises MismatchError naming every difference of shape, or a trace of other weights."""
    ours, theirs = reference.config, candidate.config
    different = [
        f"{key} {getattr(theirs, key)} (reference: {getattr(ours, key)})"
        for key in AndreaConfig.__dataclass_fields__
        if getattr(ours, key) != getattr(theirs, key)
    ]
    if different:
        raise MismatchError(
            f"candidate {candidate.name} is of another architecture: {', '.join(different)}",
            hint="compare two files of one model",
        )
    if (reference.is_of_one_model or candidate.is_of_one_model) and reference.origin != candidate.origin:
        raise MismatchError(
            f"the trace is of another model: the candidate {candidate.name} has {candidate.weights}, "
            f"the reference {reference.name} {reference.weights}",
            hint="record it again from the model it is compared with",
        )


def origin_key(origin: WeightsOrigin) -> str:
    """One key for where weights came from, whatever the checkpoint's file is called."""
    return origin.checkpoint_sha256 or f"seed {origin.seed} of {origin.preset}"
