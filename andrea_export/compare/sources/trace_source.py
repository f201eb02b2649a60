"""A recorded run: it has every layer and prediction it was recorded with, and cannot be run again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from andrea_export.compare.inputs import Case
from andrea_export.compare.runs import LayerRun
from andrea_export.compare.sources.base import Identity
from andrea_export.compare.trace_file import TraceFile
from andrea_export.core.hashing import sha256_of
from andrea_export.core.profile import Profile


class TraceSource:
    """A recorded run."""

    def __init__(self, trace: TraceFile) -> None:
        header = trace.header
        self._trace = trace
        self.facts: Mapping[str, object] = {}
        self.profile: Profile | None = None
        self.shows_layers = len(header.layers) > 2 * header.config.n_layer + 1  # more than logits, keys and values
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
        )

    def layers(self, cases: Sequence[Case]) -> LayerRun:
        """See ``Source``."""
        from andrea_export.compare.session_run import TraceRun

        return TraceRun(self._trace)

    def session(self) -> None:
        """A trace cannot be run."""

    def weights(self) -> None:
        """A trace holds none."""

    def recorded(self) -> TraceFile:
        """See ``Source``."""
        return self._trace
