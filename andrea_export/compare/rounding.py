"""How torch rounds to show the error that a candidate may have: what the candidate's budgets are multiples of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """Torch in one precision (a key of ``PRECISIONS``) or, with ``convert``, rounding as a graph of these types does.

    ``convert(part, path)`` makes a copy of a part of the model that rounds so; ``path`` is where the part is in it, ""
    for the whole model.
    """

    name: str
    """What a basis is filed under: a precision's name, or a graph's."""
    precision: str
    convert: Callable[[Any, str], Any] | None = None


def rounding_of(precision: str) -> Rounding:
    """Torch in one precision."""
    return Rounding(name=precision, precision=precision)
