"""Numbers as callers give them: Python's own, numpy's or a fraction, but no truth values and no text."""

from __future__ import annotations

import operator
from numbers import Real
from typing import Any

from andrea_export.core.errors import UsageError


def whole_number(name: str, value: Any) -> int:
    """The value as an int. Raises: UsageError if it is none."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise UsageError(f"{name} is {value!r}, expected a whole number")


def real_number(name: str, value: Any) -> float:
    """The value as a float. Raises: UsageError if it is none, or beyond what a float holds."""
    try:
        if isinstance(value, Real) and not isinstance(value, bool):
            return float(value)
    except OverflowError:
        pass
    raise UsageError(f"{name} is {str(value)[:40]!r}, expected a number")
