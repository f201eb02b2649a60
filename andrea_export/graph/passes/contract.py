"""How passes are run: their contracts are checked, and a broken one is a PassError of this project's."""

from __future__ import annotations

import onnx_ir as ir

from andrea_export.core.errors import PassError
from andrea_export.graph.canonical import MODULE_KEY


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


def module_of(node: ir.Node) -> str:
    """The module path a node belongs to. Raises PassError if it carries none."""
    try:
        return node.metadata_props[MODULE_KEY]
    except KeyError:
        raise PassError(
            f"node '{node.name}' ({node.op_type}) carries no module path",
            hint="start from the model.onnx that andrea-export wrote",
        ) from None
