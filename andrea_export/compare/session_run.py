"""What cannot be fed layer by layer behind ``LayerRun``: a session that is run once a case, and a recorded run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from andrea_export.compare.inputs import Arrays, Case
from andrea_export.compare.runs import ByCase, UnfedRun, Visible
from andrea_export.compare.trace_file import TraceFile
from andrea_export.core.errors import RunError
from andrea_export.core.names import Segment, present_names
from andrea_export.sessions.base import Session, cache_from, zero_cache
from andrea_model.config import AndreaConfig


class SessionRun(UnfedRun):
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


class TraceRun(UnfedRun):
    """The layers of a trace, read segment by segment."""

    def __init__(self, trace: TraceFile, visible: Visible) -> None:
        super().__init__(visible)
        self._trace = trace

    def accumulated(self, segment: Segment) -> ByCase:
        """See ``LayerRun``. Raises TraceError where a tensor is not what was recorded."""
        return self._trace.layers(segment.layers)


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
