"""Numbers as callers give them (Python's own, numpy's or a fraction; neither truth values nor text) and as JSON has
them."""

import math
import operator
from collections.abc import Mapping
from numbers import Real
from typing import Any

from andrea_export.core.errors import UsageError


def whole_number(name: str, value: Any) -> int:
    """The value as an int. Raises: UsageError, by that name, if it is not a whole number."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise UsageError(f"{name} is {value!r}, expected a whole number")


def real_number(name: str, value: Any) -> float:
    """The value as a float. Raises: UsageError, by that name, if it is not a number or more than a float holds."""
    try:
        if isinstance(value, Real) and not isinstance(value, bool):
            return float(value)
    except OverflowError:
        pass
    raise UsageError(f"{name} is {str(value)[:40]!r}, expected a number")


def json_values(value: Any) -> Any:
    """The value with every figure that is not finite as text (``nan``, ``inf``, ``-inf``), for JSON has none."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: json_values(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(entry) for entry in value]
    return value
