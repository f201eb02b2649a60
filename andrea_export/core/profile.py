"""The shapes that an engine is built for: what each dynamic dimension may be, and what it is tuned for."""

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from andrea_export.core.strict import Strict


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRange(Strict):
    """What one dynamic dimension may be in an engine: smallest, the one tuned for, largest."""

    min: Annotated[int, Field(ge=0)]
    opt: Annotated[int, Field(ge=0)]
    max: Annotated[int, Field(ge=0)]

    def __post_init__(self) -> None:
        if not self.min <= self.opt <= self.max:
            raise ValueError(f"min {self.min}, opt {self.opt}, max {self.max} are not in rising order")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile(Strict):
    """The engines' optimization profile."""

    batch: ShapeRange = field(default_factory=lambda: ShapeRange(min=1, opt=1, max=8))
    """Rows at once; at least 1."""
    sequence: ShapeRange = field(default_factory=lambda: ShapeRange(min=1, opt=128, max=1024))
    """Tokens given at once; at least 1."""
    past: ShapeRange = field(default_factory=lambda: ShapeRange(min=0, opt=128, max=1023))
    """Tokens in the cache."""

    def __post_init__(self) -> None:
        for name in ("batch", "sequence"):
            if getattr(self, name).min < 1:
                raise ValueError(f"{name}.min is 0, expected at least 1")
