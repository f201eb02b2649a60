"""How passes are run: their contracts are checked, and a broken one is a PassError of this project's."""

from __future__ import annotations

import onnx_ir as ir

from andrea_export.core.errors import PassError


def run_passes(model: ir.Model, *passes: ir.passes.InPlacePass) -> None:
    """The model with every pass applied, in order, each one's ``requires`` and ``ensures`` checked.

    Raises: PassError for the first contract that does not hold.
    """
    for one in passes:
        try:
            one(model)
        except ir.passes.InvariantError as error:  # the base class wraps what requires and ensures raise
            if isinstance(error.__cause__, PassError):
                raise error.__cause__ from None
            raise
