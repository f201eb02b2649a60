"""How passes are run: in order, their contracts checked, and a broken one told with the passes that came before it."""

from __future__ import annotations

import onnx_ir as ir

from andrea_export.core.errors import PassError


def run_passes(model: ir.Model, *passes: ir.passes.InPlacePass) -> None:
    """The model with every pass applied, in order, each one's ``requires`` and ``ensures`` checked.

    Raises: PassError for the first contract that does not hold, naming its pass and those that ran before it.
    """
    ran: list[str] = []
    for one in passes:
        name = type(one).__name__
        try:
            one(model)
        except (PassError, ir.passes.InvariantError) as error:
            # The base class wraps what requires and ensures raise; what is not a PassError in it is a bug.
            problem = error if isinstance(error, PassError) else error.__cause__
            if not isinstance(problem, PassError):
                raise
            after = f" (after {', '.join(ran)})" if ran else ""
            raise PassError(f"{name}{after}: {problem}", hint=problem.hint) from None
        ran.append(name)
