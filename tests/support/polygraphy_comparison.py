"""Polygraphy's own comparison, asked in this process: the functions that ``polygraphy run`` calls, less its prose.

Owns how it is asked and what its answer is read as. What ``polygraphy run`` does after its runners have run is
``Comparator.compare_accuracy`` with ``SimpleCompareFunc``; so does this. Nine tenths of its time go into statistics
that are only logged, of every tensor and of every difference; those are left out here, and a test holds this verdict
against the command's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[Any]]

DEFAULT_TOLERANCE = 1e-5
"""``polygraphy run``'s --atol and --rtol; an element passes if it keeps either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a comparator said of one graph: whether it failed it, and at which layer first."""

    failed: bool
    layer: str | None


def polygraphy_answer(
    truth: Mapping[str, Arrays],
    found: Mapping[str, Arrays],
    names: Sequence[str],
    budgets: Mapping[str, float] | None = None,
) -> Answer:
    """Polygraphy's verdict on two runs, case → layer → tensor, and the first of ``names`` that it failed.

    Without ``budgets`` by its default tolerances; with them, each is the absolute tolerance of its layer and no
    relative one helps. A case or a layer that is not there is a failure: the command ends there as well.
    """
    from polygraphy.comparator import Comparator, IterationResult, RunResults, SimpleCompareFunc

    present = [name for name in names if all(name in layers for layers in found.values())]
    if set(found) != set(truth) or len(present) < len(names):
        return Answer(failed=True, layer=next((name for name in names if name not in present), None))
    results = RunResults()
    for runner, run in (("candidate", found), ("reference", truth)):  # relative errors are to the second
        iterations = []
        for case in truth:
            outputs = {name: as_onnxruntime_gives_it(run[case][name]) for name in names}
            iterations.append(IterationResult(outputs=outputs, runtime=0.0, runner_name=runner))
        results.append((runner, iterations))
    if budgets is None:
        compare = SimpleCompareFunc(atol=DEFAULT_TOLERANCE, rtol=DEFAULT_TOLERANCE, fail_fast=False)
    else:
        compare = SimpleCompareFunc(atol={**budgets, "": 0.0}, rtol=0.0, fail_fast=False)
    with without_statistics(), np.errstate(divide="ignore", invalid="ignore"):  # it divides by zeros of the reference
        accuracy = Comparator.compare_accuracy(results, fail_fast=False, compare_func=compare)
    ((_, iterations_passed),) = accuracy[0].items()
    failed = {name for passed in iterations_passed for name, result in passed.items() if not bool(result)}
    return Answer(failed=bool(failed), layer=next((name for name in names if name in failed), None))


def as_onnxruntime_gives_it(value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Floating values in fp32, which is what Polygraphy compares when both sides are onnxruntime's."""
    return value if value.dtype == np.bool_ else value.astype(np.float32)


@contextmanager
def without_statistics() -> Iterator[None]:
    """While it is entered Polygraphy logs nothing, and does not compute what it would only log."""
    from polygraphy import util
    from polygraphy.comparator import util as statistics
    from polygraphy.logger import G_LOGGER

    def nothing(*_given: Any, **_named: Any) -> str:
        return ""

    with ExitStack() as stack:
        stack.enter_context(G_LOGGER.verbosity(G_LOGGER.CRITICAL))
        for module, name in (
            (statistics, "log_output_stats"),
            (statistics, "log_compared_output_stats"),
            (util, "indent_block"),
        ):
            stack.enter_context(patch.object(module, name, nothing))
        yield
