"""What every run is: one model on the cases of a comparison, a segment of layers at a time; how torch rounds in it, and
what one segment leaves to the next.

A segment's layers are computed, compared and forgotten before the next: no run ever holds all its activations.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np

from andrea_export.compare.inputs import Arrays, Case
from andrea_export.core.errors import RunError
from andrea_export.core.names import Segment, graph_outputs, present_names, segments
from andrea_export.sessions.base import Session, cache_from, zero_cache
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


class LayerRun(ABC):
    """One model running all cases, segment by segment, in order. A run whose layers cannot be fed is only read."""

    def __init__(self, visible: Visible) -> None:
        self.visible = visible
        self.refusals: list[str] = []
        """Cases the model would not run, each with its reason; none where one refusal is an error."""

    @abstractmethod
    def accumulated(self, segment: Segment) -> ByCase:
        """The layers of the next segment, from the run's own values so far. A layer the model lacks is absent.

        Raises: RunError, BackendUnavailable.
        """

    def local(self, segment: Segment, given: Mapping[str, Arrays]) -> ByCase:
        """The layers of a segment, each fed the values ``given`` for its inputs rather than the run's own.

        ``given`` holds, by case, the reference's layers of this segment and those that come before it as far as
        ``needs`` asked for them, and its past keys and values. A layer whose input was not given is absent.
        """
        return {}

    def needs(self, segment: Segment) -> Sequence[str]:
        """Layers of earlier segments that ``local`` will want for this one."""
        return ()

    def close(self) -> None:  # noqa: B027 (not every run holds something)
        """Releases what the run holds."""


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


class SessionRun(LayerRun):
    """What a session returns, each in its segment. A case it refuses is noted; the others still count."""

    def __init__(
        self,
        session: Session,
        config: AndreaConfig,
        cases: Sequence[Case],
        *,
        cache_dtype: np.dtype[Any],
        visible: Visible,
    ) -> None:
        super().__init__(visible)
        self._found: ByCase = {}
        for case in cases:
            try:
                self._found[case.name] = run_case(session, config, case, self._found, cache_dtype)
            except RunError as error:
                self.refusals.append(f"{case.name}: {error}")

    def accumulated(self, segment: Segment) -> ByCase:
        return {
            case: {name: found[name] for name in segment.layers if name in found} for case, found in self._found.items()
        }

    def close(self) -> None:
        """Forgets what was returned."""
        self._found.clear()


def run_case(
    session: Session, config: AndreaConfig, case: Case, before: Mapping[str, Arrays], cache_dtype: np.dtype[Any]
) -> Arrays:
    """Every output of one case, its cache the session's own from the case it follows. Raises: RunError."""
    if case.past_of is None:
        cache = zero_cache(config, batch=len(case.input_ids), past=0, dtype=cache_dtype)
    elif case.past_of in before:
        outputs = before[case.past_of]
        missing = [name for index in range(config.n_layer) for name in present_names(index) if name not in outputs]
        if missing:
            raise RunError(f"{session.name} gave no {missing[0]}, which {case.name} needs as its cache")
        cache = cache_from(outputs)
    else:
        raise RunError(f"{session.name} has no cache from {case.past_of}, which it refused")
    return session.run({**case.feeds, **cache})


class Stream:
    """What later segments need of one run's earlier ones, as far as any of ``runs`` asks for it, and its outputs."""

    def __init__(self, config: AndreaConfig, cases: Sequence[Case], runs: Sequence[LayerRun]) -> None:
        self._cases = cases
        order = segments(config)
        self._needed_after = {
            segment.name: {name for later in order[index + 1 :] for run in runs for name in run.needs(later)}
            for index, segment in enumerate(order)
        }
        self._carried: dict[str, Arrays] = {case.name: {} for case in cases}
        self._output_names = {spec.name for spec in graph_outputs(config)}
        self.outputs: ByCase = {}

    def given(self, segment: Segment, layers: ByCase) -> dict[str, Arrays]:
        """By case: these layers, those carried on, and the past keys and values they were computed with."""
        for case, found in layers.items():
            self._carried[case].update(found)
            outputs = {name: value for name, value in found.items() if name in self._output_names}
            self.outputs.setdefault(case, {}).update(outputs)
        given = {}
        for own in self._cases:
            if own.name not in layers:
                continue
            values = dict(self._carried[own.name])
            if segment.block is not None:
                for part, name in zip(("key", "value"), present_names(segment.block), strict=True):
                    past = layers.get(own.past_of or own.name, {}).get(name)
                    if past is not None:
                        values[f"past_key_values.{segment.block}.{part}"] = past if own.past_of else past[:, :, :0]
            given[own.name] = values
        return given

    def forget(self, segment: Segment) -> None:
        """Drops what no later segment needs."""
        needed = self._needed_after[segment.name]
        self._carried = {
            case: {name: value for name, value in found.items() if name in needed}
            for case, found in self._carried.items()
        }
