"""What one command line of andrea-export costs: wall time, processor time, peak memory."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

_SAMPLED_EVERY_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRun:
    """One run. Memory is that of the process and its children together, in MiB."""

    seconds: float
    cpu_seconds: float
    peak_mib: float
    exit_code: int
    stdout: str


def run_andrea_export(arguments: Sequence[str]) -> CommandRun:
    """Runs the command line tool in a process of its own, as a user does.

    Its peak is the kernel's figure (wait4), or, where children make it more, the sum of their resident pages and its
    own, sampled: shared pages count more than once in that, so the true peak is lower.
    """
    sampled = 0
    begin = time.perf_counter()
    with tempfile.TemporaryFile("w+") as stdout:
        child = subprocess.Popen(
            [sys.executable, "-m", "andrea_export", *arguments], stdout=stdout, stderr=subprocess.DEVNULL
        )
        ended = 0
        while not ended:
            time.sleep(_SAMPLED_EVERY_S)
            sampled = max(sampled, _resident_bytes(child.pid))
            ended, status, usage = os.wait4(child.pid, os.WNOHANG)
        child.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - begin
        stdout.seek(0)
        return CommandRun(
            seconds=round(seconds, 2),
            cpu_seconds=round(usage.ru_utime + usage.ru_stime, 2),
            peak_mib=round(max(usage.ru_maxrss / 2**10, sampled / 2**20), 1),
            exit_code=child.returncode,
            stdout=stdout.read(),
        )


def summary(runs: Sequence[CommandRun]) -> dict[str, object]:
    """Medians and the largest peak, then every run without what it printed."""
    return {
        "median_seconds": statistics.median(run.seconds for run in runs),
        "median_cpu_seconds": statistics.median(run.cpu_seconds for run in runs),
        "max_peak_mib": max(run.peak_mib for run in runs),
        "runs": [{key: value for key, value in asdict(run).items() if key != "stdout"} for run in runs],
    }


def _resident_bytes(pid: int) -> int:
    """Resident memory of a process and everything it started."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, IndexError):  # it ended between two looks
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(_resident_bytes(int(child)) for child in children)
