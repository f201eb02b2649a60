"""One candidate through a comparison: its run, its rows, and what it refused."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from andrea_export.compare.basis import BudgetBasis
from andrea_export.compare.inputs import Arrays, Case
from andrea_export.compare.rows import Rows
from andrea_export.compare.runs import ByCase, LayerRun, LocalErrors, Stream, run_case
from andrea_export.compare.sources.base import Source
from andrea_export.core.dtypes import DTYPES
from andrea_export.core.errors import AndreaError, BackendUnavailable, MismatchError, RunError, TraceError
from andrea_export.core.names import Segment
from andrea_export.core.precision import PRECISIONS
from andrea_export.report.schema import Candidate, LayerRow, Verdict

_FED_BACK = "taken the other way round: the reference's layer was fed the recorded input"


class Followed:
    """One candidate, from its run's start to its rows. Errors of its own are noted, and end its run."""

    def __init__(self, source: Source, cases: Sequence[Case], truth: LayerRun | None) -> None:
        self.source = source
        self.rows: list[LayerRow] = []
        self.run: LayerRun | None = None
        self._cases = cases
        self._make = Rows(source.identity.name, source.identity.precision, cases)
        self._truth = truth
        self._stream = Stream(source.identity.config, cases, [truth] if truth is not None else [])
        self._fused_away: str | Sequence[str] = ""
        self._facts: dict[str, object] = {}
        self._refusals: list[str] = []
        self._unavailable = ""

    def open(self) -> None:
        """Starts the run; a file that holds no such model is the candidate's fault."""
        with self._noting_errors(AndreaError):
            self.run = self.source.layers(self._cases)
            self._fused_away = self.run.visible.fused_away

    def close(self) -> None:
        """Releases the run."""
        if self.run is not None:
            self._refusals += self.run.refusals
            self.run.close()
            self.run = None

    def take(
        self,
        segment: Segment,
        reference: ByCase,
        *,
        names: Collection[str],
        given: Mapping[str, Arrays],
        basis: BudgetBasis,
    ) -> None:
        """Adds the rows of one segment. ``names``: the layers the reference is to have; ``given``: to a local run."""
        if self.run is None:
            return
        visible = self.run.visible
        found: ByCase = {}
        local: ByCase = {}
        with self._noting_errors():
            found = self.run.accumulated(segment)
            local = self.run.local(segment, given)
        if self.run is None:
            return
        own_given = self._stream.given(segment, found)
        truth, note = reference, ""
        if visible.local_errors is LocalErrors.FED_BACK and self._truth is not None:
            local, truth, note = found, self._truth.local(segment, own_given), _FED_BACK
        rounding = self.source.rounding.name
        own_basis, local_basis = basis.accumulated(rounding), basis.local(rounding) if local else {}
        for layer in segment.layers:
            if visible.has(layer) and layer in names:
                row = self._make.row(layer, reference, found, own_basis.get(layer, {}))
                if visible.local_errors is not LocalErrors.NONE:
                    error = self._make.local_error(row, truth, local, local_basis.get(layer, {}), note)
                    row = replace(row, local=error)
                self.rows.append(row)
        self._stream.forget(segment)

    def finish(self, reference: ByCase) -> None:
        """Adds the facts of its outputs, which are those of a run as it ships; ``reference``: the reference's."""
        if self.run is None:
            return
        shipped = self._stream.outputs
        if self.source.reruns_as_shipped:
            shipped = {}
            with self._noting_errors():
                shipped = self._run_as_shipped()
            if self.run is None:
                return
            self._facts["taps_moved_logits_by"] = _largest_difference(shipped, self._stream.outputs, "logits")
            self._facts["taps_moved_outputs_by"] = _largest_difference(shipped, self._stream.outputs, "")
            self._facts["logits_max_abs_as_shipped"] = _largest_difference(shipped, reference, "logits")
            self.rows = [self._as_shipped(row, reference, shipped) for row in self.rows]
        self._facts.update(self.source.facts_of_outputs(self._cases, reference, shipped))

    def candidate(self) -> Candidate:
        """What the report says of it, but for what a policy makes of its rows."""
        refusals = [*self._refusals, *(self.run.refusals if self.run is not None else [])]
        facts = {**self.source.facts, **self._facts}
        if refusals:
            facts["refused"] = "; ".join(refusals)
        if self._fused_away and self.rows:
            facts["fused_away"] = self._fused_away
        verdict: Verdict = "not-measured" if self._unavailable else "fail" if refusals else "pass"
        return candidate_of(self.source, verdict, self._unavailable or "; ".join(refusals), facts)

    @contextmanager
    def _noting_errors(self, kind: type[AndreaError] = RunError) -> Iterator[None]:
        """Ends the run at an error of this kind, and notes it. Bad input is not the candidate's fault: it is raised."""
        try:
            yield
        except (TraceError, MismatchError):
            raise
        except BackendUnavailable as error:
            self.close()
            self.rows.clear()
            self._unavailable = str(error)
        except kind as error:
            self.close()
            self._refusals.append(str(error))

    def _run_as_shipped(self) -> ByCase:
        """The outputs of the whole graph, nothing added; a case that it refuses is noted."""
        identity = self.source.identity
        cache_dtype = DTYPES[PRECISIONS[identity.precision].cache_dtype].numpy
        found: ByCase = {}
        with self.source.session() as session:
            for case in self._cases:
                try:
                    found[case.name] = run_case(session, identity.config, case, found, cache_dtype)
                except RunError as error:
                    self._refusals.append(f"{case.name}, as shipped: {error}")
        return found

    def _as_shipped(self, row: LayerRow, reference: ByCase, shipped: ByCase) -> LayerRow:
        """An output's row as the run without taps has it; any other row as it is."""
        is_output = any(row.name in outputs for outputs in reference.values())
        if row.problem or not is_output:
            return row
        return replace(self._make.row(row.name, reference, shipped, row.basis), local=row.local)


def candidate_of(source: Source, verdict: Verdict, reason: str, facts: Mapping[str, object]) -> Candidate:
    """A source as a candidate of a report."""
    return Candidate(
        name=source.identity.name,
        verdict=verdict,
        reason=reason,
        precision=source.identity.precision,
        facts=facts,
        provenance=source.identity.stated_provenance,
    )


def _largest_difference(ours: ByCase, theirs: ByCase, name: str) -> float | None:
    """The largest |difference| of the outputs of this name ("" for all) over all cases; infinite for NaN or Inf.

    None where a case or an output is on one side only: then there is nothing to say.
    """
    if set(ours) != set(theirs) or not ours:
        return None
    largest = 0.0
    for case, outputs in ours.items():
        wanted = {output for output in {*outputs, *theirs[case]} if name in ("", output)}
        if not all(output in outputs and output in theirs[case] for output in wanted) or not wanted:
            return None
        for output in wanted:
            if outputs[output].shape != theirs[case][output].shape:
                return None
            with np.errstate(invalid="ignore"):
                difference = np.abs(outputs[output].astype(np.float64) - theirs[case][output].astype(np.float64))
            if not np.isfinite(difference).all():
                return math.inf
            largest = max(largest, float(difference.max(initial=0.0)))
    return largest
