"""The report: data, not text. Computes nothing but its own verdict, renders nothing; ``file`` reads and writes it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from andrea_export.core.strict import Strict

Verdict = Literal["pass", "fail", "not-measured"]
Number = int | float
Relation = Literal["at most", "at least"]
Better = Literal["lower", "higher", "neither"]
ErrorName = Literal["accumulated", "local", "language model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure(Strict):
    """One figure that is out of its budget: ``metric`` was expected ``relation`` ``expected``."""

    metric: str
    relation: Relation
    expected: float
    obtained: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstElement(Strict):
    """The element with the largest absolute error: in which case of ``inputs``, where, and both its values."""

    case: str
    index: tuple[int, ...]
    reference: float
    candidate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UlpHistogram(Strict):
    """Distances in units in the last place: ``counts[i]`` values are in ``[edges[i], edges[i + 1])``, or above."""

    edges: tuple[int, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread(Strict):
    """Where an error sits: the largest absolute error of each group along the token positions and the channels.

    ``by_position[i]`` covers the positions ``i·positions_per_group`` up to the next group's, in every one of ``cases``:
    a token's position is that in its own row, padding not counted, so that a decode's lie after its prefill's.
    ``by_channel`` likewise (a mask's channels are its keys). At most 128 groups of positions and 64 of channels;
    ``worst_channels`` names single channels, worst first. Empty where the layer has no such axis.
    """

    cases: tuple[str, ...]
    positions_per_group: int = 1
    by_position: tuple[float, ...] = ()
    channels_per_group: int = 1
    by_channel: tuple[float, ...] = ()
    worst_channels: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalError(Strict):
    """A layer's own error: it was fed the reference's input, so that nothing before it counts."""

    verdict: Verdict
    metrics: Mapping[str, Number] = field(default_factory=dict)
    budget: Mapping[str, float] = field(default_factory=dict)
    basis: Mapping[str, float] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    worst: WorstElement | None = None
    reason: str = ""
    """Why it was not measured, or how it was where that is not the plain way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow(Strict):
    """One layer of one candidate against the reference: its accumulated error, and beside it the local one.

    ``verdict`` is that of both together. ``basis`` is what the budget is a multiple of: torch's own error in the
    candidate's precision, or one rounding of the layer's type. A layer the candidate lacks has no metrics.
    """

    name: str
    candidate: str
    verdict: Verdict
    metrics: Mapping[str, Number]
    budget: Mapping[str, float]
    basis: Mapping[str, float] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    dtype: str = ""
    worst: WorstElement | None = None
    ulp_histogram: UlpHistogram | None = None
    spread: Spread | None = None
    local: LocalError | None = None
    problem: str = ""
    """What is wrong where it is not a figure: the layer is missing, or has another shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModelRow(Strict):
    """What the errors do to the language model, on one kind of input (``case``) of ``num_positions`` predictions."""

    candidate: str
    case: str
    """``context 128``, ``left-padded batch``, ``decode with cache``, ``greedy``."""
    context: int
    num_positions: int
    verdict: Verdict
    metrics: Mapping[str, Number]
    budget: Mapping[str, float]
    basis: Mapping[str, float] = field(default_factory=dict)
    """``max_abs``: the largest error of torch's own logits, in the candidate's precision, on the same text."""
    failures: tuple[Failure, ...] = ()
    reason: str = ""
    """Why it was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatchetRow(Strict):
    """One figure beside the same one of the baseline report; only those that worsened beyond what is allowed, fail."""

    candidate: str
    name: str
    """The layer, or the language model's case."""
    error: ErrorName
    metric: str
    relation: Relation
    baseline: float
    limit: float
    obtained: float
    verdict: Verdict

    @property
    def as_failure(self) -> Failure:
        """The figure against its limit."""
        return Failure(metric=self.metric, relation=self.relation, expected=self.limit, obtained=self.obtained)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Strict):
    """One thing that was compared, or that could not be; ``facts`` are what else is known of it."""

    name: str
    verdict: Verdict
    reason: str = ""
    precision: str = "fp32"
    first_failure: str | None = None
    """The first layer whose local error is out of budget; if none is, the first whose accumulated error is."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)
    """What it is: kind, sha256 of its files, versions that made it, the recipe. No paths."""
    has_own_truth: Annotated[bool, Field(exclude=True)] = False
    """Whether its rows were measured against a truth of their own, and judged there: no policy judges them again.

    Not written: ``report.file`` knows it from the name.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Strict):
    """One statement that holds or does not: files match the manifest, weights are the checkpoint's, plugin counts."""

    name: str
    verdict: Verdict
    detail: str
    layer: str | None = None
    """The layer at fault, where one is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric(Strict):
    """What a figure means, for whoever shows it."""

    unit: str
    better: Better
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Strict):
    """What was compared with what, on which inputs, by which formula, and how it came out."""

    reference: Mapping[str, str]
    inputs: Mapping[str, Any]
    """Case → batch, sequence, past, padding; and where the tokens came from."""
    candidates: tuple[Candidate, ...]
    checks: tuple[Check, ...]
    layers: tuple[LayerRow, ...]
    layer_order: tuple[str, ...] = ()
    formula: str = ""
    language_model: tuple[LanguageModelRow, ...] = ()
    ratchet: tuple[RatchetRow, ...] = ()
    policy: Mapping[str, Any] = field(default_factory=dict)
    """The policy that judged, every key with its value: k and its reason among them."""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """Every metric that appears, and what it means."""
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """fail if anything failed; pass only if a candidate passed whose logits were compared and passed.

        Rows of the plugin's maths alone say nothing of the model. A candidate that was not measured fails the report
        too, unless the policy says that it passes.
        """
        unmeasured = any(candidate.verdict == "not-measured" for candidate in self.candidates)
        if unmeasured and self.policy.get("not_measured") == "fail":
            return "fail"
        proven = {row.candidate for row in self.layers if row.name == "logits" and row.verdict == "pass"}
        passed = any(entry.verdict == "pass" and entry.name in proven for entry in self.candidates)
        return "pass" if passed and "fail" not in self.verdicts else "fail"

    @property
    def verdicts(self) -> frozenset[Verdict]:
        """Every verdict that a candidate, check, layer, case of the language model or held figure has."""
        rows = (self.candidates, self.checks, self.layers, self.language_model, self.ratchet)
        return frozenset(row.verdict for of_one_kind in rows for row in of_one_kind)

    @property
    def first_failure(self) -> str | None:
        """The first layer at fault, in model order; None if no layer is.

        A layer is at fault where its local error is out of budget, it is missing, or a failed check names it. Only
        where there is none, the first layer whose accumulated error is out of budget.
        """
        checked = [check.layer for check in self.checks if check.verdict == "fail" and check.layer is not None]
        at_fault = [*checked, *(row.name for row in self.layers if is_at_fault(row))]
        failed = [row.name for row in self.layers if row.verdict == "fail"]
        return min(at_fault or failed, key=self.position_of(), default=None)

    def position_of(self) -> Callable[[str], int]:
        """A layer's name → its position in model order; a name that is not in it comes last."""
        order = {name: index for index, name in enumerate(self.layer_order)}
        return lambda name: order.get(name, len(order))


def is_at_fault(row: LayerRow) -> bool:
    """Whether the layer itself is wrong, rather than what it was given: by its local error where that was measured."""
    if row.verdict != "fail":
        return False
    if row.problem or row.metrics.get("num_nan") or row.metrics.get("num_inf"):
        return True
    return row.local is not None and row.local.verdict == "fail"
