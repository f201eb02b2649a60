"""What was found for one step, how what is found for several becomes one answer, and the GPU as a finding."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from andrea_export.core.gpu import why_no_gpu

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


def gpu() -> Finding:
    """An NVIDIA GPU that CUDA can use, as every backend asks for it; nvidia-smi only adds its name."""
    if reason := why_no_gpu():
        return Finding(
            available=False, detail=reason, hint="on a machine that has an NVIDIA GPU, install NVIDIA's driver"
        )
    return Finding(available=True, detail=_names() or "the driver finds one; there is no nvidia-smi to name it")


def and_a_gpu(look: Look) -> Look:
    """This and a GPU. Where there is no GPU, nothing that is installed here would help: the hint says so."""

    def both() -> Finding:
        found, device = look(), gpu()
        if device.available:
            return found
        if found.available or found.detail == device.detail:
            return device
        if device.detail in found.detail:  # it has said so itself
            return found
        command = f": {found.hint}" if found.hint else ""
        return Finding(
            available=False,
            detail=f"{device.detail}; {found.detail}",
            hint=f"on a machine with an NVIDIA GPU and its driver{command}",
        )

    return both


def _names() -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    query = [tool, "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, errors="replace", timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
    return "; ".join(lines) if answer.returncode == 0 else ""
