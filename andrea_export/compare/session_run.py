"""What shows only its outputs, and what was recorded, behind ``LayerRun``: an engine's session, and a trace.

An engine is run once a case; its inner layers are fused and have no names. A trace cannot be fed, so its local errors
are taken the other way round (``compare``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from andrea_export.compare.inputs import Arrays, Case
from andrea_export.compare.runs import ByCase
from andrea_export.compare.trace_file import TraceFile
from andrea_export.core.errors import RunError
from andrea_export.core.names import Segment, present_names
from andrea_export.sessions.base import Session, zero_cache
from andrea_model.config import AndreaConfig


class SessionRun:
    """A session's own outputs, each in its segment. A case it refuses is noted; the others still count."""

    def __init__(
        self, session: Session, config: AndreaConfig, cases: Sequence[Case], *, cache_dtype: np.dtype[Any]
    ) -> None:
        self.refusals: list[str] = []
        self._outputs: ByCase = {}
        for case in cases:
            try:
                self._outputs[case.name] = run_case(session, config, case, self._outputs, cache_dtype)
            except RunError as error:
                self.refusals.append(f"{case.name}: {error}")

    def accumulated(self, segment: Segment) -> ByCase:
        """See ``LayerRun``."""
        return {
            case: {name: outputs[name] for name in segment.layers if name in outputs}
            for case, outputs in self._outputs.items()
        }

    def local(self, segment: Segment, given: Mapping[str, Arrays]) -> ByCase:
        """Nothing: what is fused cannot be fed."""
        return {}

    def needs(self, segment: Segment) -> Sequence[str]:
        """Nothing."""
        return ()

    def close(self) -> None:
        """Forgets the outputs."""
        self._outputs.clear()


class TraceRun:
    """The layers of a trace, read segment by segment."""

    def __init__(self, trace: TraceFile) -> None:
        self._trace = trace
        self.refusals: list[str] = []

    def accumulated(self, segment: Segment) -> ByCase:
        """See ``LayerRun``. Raises TraceError where a tensor is not what was recorded."""
        return self._trace.layers(segment.layers)

    def local(self, segment: Segment, given: Mapping[str, Arrays]) -> ByCase:
        """Nothing: what was recorded cannot be fed."""
        return {}

    def needs(self, segment: Segment) -> Sequence[str]:
        """Nothing."""
        return ()

    def close(self) -> None:
        """Nothing is held."""


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
            raise RunError(f"{session.name} gave no {missing[0]} for {case.name} to go on with")
        cache = {
            f"past_key_values.{name.removeprefix('present.')}": value
            for name, value in outputs.items()
            if name.startswith("present.")
        }
    else:
        raise RunError(f"{session.name} has no cache from {case.past_of}, which it refused")
    return session.run({**case.feeds, **cache})
