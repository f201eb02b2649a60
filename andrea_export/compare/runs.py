"""What every run is: one model on the cases of a comparison, a segment of layers at a time.

A segment's layers are computed, compared and forgotten before the next: no run ever holds all its activations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from andrea_export.compare.inputs import Arrays
from andrea_export.core.names import Segment

ByCase = dict[str, Arrays]
"""Case → layer → tensor."""


class LayerRun(Protocol):
    """One model running all cases, segment by segment, in order."""

    refusals: list[str]
    """Cases the model would not run, each with its reason; none where one refusal is an error."""

    def accumulated(self, segment: Segment) -> ByCase:
        """The layers of the next segment, from the run's own values so far. A layer the model lacks is absent.

        Raises: RunError, BackendUnavailable.
        """
        ...

    def local(self, segment: Segment, given: Mapping[str, Arrays]) -> ByCase:
        """The layers of a segment, each fed the values ``given`` for its inputs rather than the run's own.

        ``given`` holds, by case, the reference's layers of this segment and those that come before it as far as
        ``needs`` asked for them, and its past keys and values. A layer whose input was not given is absent.
        """
        ...

    def needs(self, segment: Segment) -> Sequence[str]:
        """Layers of earlier segments that ``local`` will want for this one."""
        ...

    def close(self) -> None:
        """Releases what the run holds."""
        ...
