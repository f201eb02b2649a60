"""What was found for one step, how what is found for several becomes one answer; the GPU, and the packages
that this distribution asks for by its own metadata, as findings."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from andrea_export.core.installed import installed_version, why_no_gpu

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


DISTRIBUTION = "andrea-export"
_REQUIREMENT = re.compile(r"""^(?P<name>[A-Za-z0-9._-]+)\s*(?P<spec>[<>=!~][^;]*)?(?:;(?P<marker>.*))?$""")
_EXTRA = re.compile(r"""extra\s*==\s*['"](?P<extra>[^'"]+)['"]""")
_EXTRAS_OF_HINT = re.compile(rf"'{DISTRIBUTION}\[(?P<extras>[a-z,]+)\]'(?P<more>(?: [a-z][a-z0-9-]+)*)")
_MINIMUM = re.compile(r"(?:>=|==)\s*([0-9]+(?:\.[0-9]+)*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One package this distribution asks for: its name, and the version specifier as written (empty if none)."""

    name: str
    specifier: str

    def problem(self) -> str | None:
        """None if it is installed and new enough, else what is wrong; an ``==`` pin is held up to its ``.*``."""
        version = installed_version(self.name)
        if version is None:
            return f"{self.name} is not installed"
        minimum = _MINIMUM.search(self.specifier)
        if minimum is None:
            return None
        wanted, found = _numbers(minimum.group(1)), _numbers(version)
        holds = found[: len(wanted)] == wanted if "==" in self.specifier else found >= wanted
        return None if holds else f"{self.name} is {version}, expected {self.specifier}"


def requirements(extra: str | None) -> tuple[Requirement, ...]:
    """What this distribution asks for: the base packages (None), or those of one extra.

    Of the markers ``extra`` alone is evaluated; a package for some Python versions only is left out.
    """
    found = []
    for text in importlib.metadata.requires(DISTRIBUTION) or ():
        match = _REQUIREMENT.match(text)
        if match is None:
            continue
        marker = match.group("marker") or ""
        named = _EXTRA.search(marker)
        if (named.group("extra") if named else None) != extra or "python_version" in marker:
            continue
        found.append(Requirement(name=match.group("name"), specifier=(match.group("spec") or "").strip()))
    return tuple(found)


def base_packages() -> Finding:
    """Whether the packages every step needs are here, each missing one named."""
    hint = f"pip install {DISTRIBUTION}"
    try:
        wanted = requirements(None)
    except importlib.metadata.PackageNotFoundError:
        return Finding(available=False, detail=f"{DISTRIBUTION} itself is not installed", hint=hint)
    problems = [problem for requirement in wanted if (problem := requirement.problem()) is not None]
    if problems:
        return Finding(available=False, detail="; ".join(problems), hint=hint)
    shown = (name for name in ("torch", "onnx", "onnx-ir") if name in {requirement.name for requirement in wanted})
    return Finding(available=True, detail=", ".join(f"{name} {installed_version(name)}" for name in shown))


def packages_above() -> Finding:
    """The packages every step needs, for the steps after the one that names each."""
    found = base_packages()
    return found if found.available else replace(found, detail="needs what export needs, above")


def missing_extras_only(hint: str) -> str:
    """The hint without the extras that are installed already, unless nothing else would be left of it."""

    def is_missing(extra: str) -> bool:
        return any(requirement.problem() is not None for requirement in requirements(extra))

    def shorter(found: re.Match[str]) -> str:
        missing = [extra for extra in found.group("extras").split(",") if is_missing(extra)]
        if missing:
            return f"'{DISTRIBUTION}[{','.join(missing)}]'{found.group('more')}"
        return found.group("more").lstrip() or found.group()

    try:
        return _EXTRAS_OF_HINT.sub(shorter, hint)
    except importlib.metadata.PackageNotFoundError:
        return hint


def _numbers(version: str) -> tuple[int, ...]:
    """The release numbers of a version: ``2.13.0+cpu`` → (2, 13, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[+a-z-]", version)[0]))
