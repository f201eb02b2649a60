"""What was found for one step, and how what is found for several becomes one answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from andrea_export.sessions.base import Availability


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found for one step: with what it can be done, or what is missing (``detail``), and what brings it."""

    available: bool
    detail: str
    hint: str | None = None


Look = Callable[[], Finding]


def all_of(*looks: Look) -> Look:
    """All of these in order: the first that is missing, else the last."""

    def look() -> Finding:
        found = Finding(available=True, detail="")
        for one in looks:
            found = one()
            if not found.available:
                break
        return found

    return look


def finding_of(status: Availability) -> Finding:
    """A backend's own answer as a finding."""
    versions = ", ".join(f"{name} {version}" for name, version in status.versions.items())
    return Finding(available=status.available, detail=versions if status.available else status.reason, hint=status.hint)
