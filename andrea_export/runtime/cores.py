"""How many threads pay: the physical cores this process may use, containers included."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP, _SYSTEM = Path("/sys/fs/cgroup"), Path("/sys/devices/system/cpu")


def num_usable_cores(cgroup: Path = _CGROUP, system: Path = _SYSTEM) -> int:
    """Physical cores in this process's affinity mask, no more than the container's CPU quota; at least 1.

    Two hardware threads of a core share its arithmetic and its path to memory, so they count as one. A quota of 1.5
    CPUs counts as 2: one thread would leave half a CPU unused.
    """
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = {_core_of(cpu, system) for cpu in usable}
    quota = _quota(cgroup)
    return max(1, len(cores) if quota is None else min(len(cores), math.ceil(quota)))


def most_threads() -> int:
    """More than these do nothing but wait for each other: four for each of the machine's CPUs, and at least 16."""
    return max(16, 4 * (os.cpu_count() or 1))


def _core_of(cpu: int, system: Path) -> str:
    """A name that all hardware threads of a core share; the thread's own where the kernel does not say."""
    file = system / f"cpu{cpu}" / "topology" / "thread_siblings_list"
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return f"cpu {cpu}"


def _quota(cgroup: Path) -> float | None:
    """CPUs the control group grants, or None where it sets no limit.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html (cpu.max: "QUOTA PERIOD", "max" for none);
    https://docs.kernel.org/scheduler/sched-bwc.html for version 1.
    """
    try:
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass  # no version 2 here
    try:
        quota_us = int((cgroup / "cpu" / "cpu.cfs_quota_us").read_text(encoding="ascii"))
        period_us = int((cgroup / "cpu" / "cpu.cfs_period_us").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None
