"""What this machine can do, step by step: each step of a build and a run, whether it can be done, and what brings it.

Works where nothing but the standard library is installed: a package is looked for before anything is imported from it,
and what a package must be is read from this distribution's own metadata.
"""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from typing import Any

from andrea_export import __version__
from andrea_export.doctor.packages import missing_extras_only
from andrea_export.doctor.steps import STEPS, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStatus:
    """One step: whether this machine can do it, with what or what is missing (``detail``), and what brings it."""

    name: str
    what: str
    available: bool
    detail: str
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """The machine in one line, and every step in the order of a build."""

    machine: str
    steps: tuple[StepStatus, ...]


def examine() -> Examination:
    """Looks at everything, starts no build and opens no model."""
    return Examination(machine=_machine(), steps=tuple(map(_status, STEPS)))


def examination_as_json(examination: Examination) -> dict[str, Any]:
    """The examination as plain JSON values."""
    return {"andrea_export": __version__, **asdict(examination)}


def _status(step: Step) -> StepStatus:
    found = step.look()
    return StepStatus(
        name=step.name,
        what=step.what,
        available=found.available,
        detail=found.detail,
        hint=missing_extras_only(found.hint) if found.hint else None,
    )


def _machine() -> str:
    """Program, Python and platform, in one line."""
    return (
        f"andrea-export {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()} CPUs"
    )
