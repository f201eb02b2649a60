"""What every run is: one model on the cases of a comparison, a segment of layers at a time, and how torch rounds in it.

A segment's layers are computed, compared and forgotten before the next: no run ever holds all its activations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

from andrea_export.compare.inputs import Arrays
from andrea_export.core.names import Segment, graph_outputs
from andrea_model.config import AndreaConfig

ByCase = dict[str, Arrays]
"""Case → layer → tensor."""


class LocalErrors(Enum):
    """How the local errors of a run's layers are had."""

    FED = auto()
    """Each layer is fed the reference's own input."""
    FED_BACK = auto()
    """The other way round: the reference's layer is fed the input that this run's layer had."""
    NOT_MEASURED = auto()
    """Nothing can be fed, and a policy may ask for it: every row says that its local error was not measured."""
    NONE = auto()
    """The errors are accumulated ones by design; no row has a local error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """What a run can show of its model."""

    layers: frozenset[str] | None = None
    """The layers it has under their names, None for all; one of them that is absent is missing. The rest is fused."""
    fused_away: str | Sequence[str] = ""
    """What the report says of the rest."""
    local_errors: LocalErrors = LocalErrors.FED

    def has(self, layer: str) -> bool:
        """Whether the layer is to be there."""
        return self.layers is None or layer in self.layers


def outputs_alone(config: AndreaConfig) -> Visible:
    """The graph's outputs, and nothing that is inside."""
    return Visible(
        layers=frozenset(spec.name for spec in graph_outputs(config)),
        fused_away="every layer but the graph's outputs",
        local_errors=LocalErrors.NOT_MEASURED,
    )


class LayerRun(Protocol):
    """One model running all cases, segment by segment, in order."""

    visible: Visible
    refusals: list[str]
    """Cases the model would not run, each with its reason; none where one refusal is an error."""

    def accumulated(self, segment: Segment) -> ByCase:
        """The layers of the next segment, from the run's own values so far. A layer the model lacks is absent.

        Raises: RunError, BackendUnavailable.
        """

    def local(self, segment: Segment, given: Mapping[str, Arrays]) -> ByCase:
        """The layers of a segment, each fed the values ``given`` for its inputs rather than the run's own.

        ``given`` holds, by case, the reference's layers of this segment and those that come before it as far as
        ``needs`` asked for them, and its past keys and values. A layer whose input was not given is absent.
        """

    def needs(self, segment: Segment) -> Sequence[str]:
        """Layers of earlier segments that ``local`` will want for this one."""

    def close(self) -> None:
        """Releases what the run holds."""


class UnfedRun:
    """What every run has whose layers cannot be fed."""

    def __init__(self, visible: Visible) -> None:
        self.visible = visible
        self.refusals: list[str] = []

    def local(self, segment: Segment, given: Mapping[str, Arrays]) -> ByCase:
        """Nothing: it cannot be fed."""
        return {}

    def needs(self, segment: Segment) -> Sequence[str]:
        """Nothing."""
        return ()

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """Torch in one precision (a key of ``PRECISIONS``) or, with ``convert``, rounding as a graph of these types does.

    ``convert(part, path)`` makes a copy of a part of the model that rounds so; ``path`` is where the part is in it, ""
    for the whole model.
    """

    name: str
    """What a basis is filed under: a precision's name, or a graph's."""
    precision: str
    convert: Callable[[Any, str], Any] | None = None


def rounding_of(precision: str) -> Rounding:
    """Torch in one precision."""
    return Rounding(name=precision, precision=precision)
