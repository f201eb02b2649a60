"""What a measurement was made under, the processor among it; what one command line of andrea-export costs; and where a
result goes."""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from andrea_export.bundle.manifest import machine_facts
from andrea_export.core.installed import installed_versions
from andrea_export.runtime.cores import num_usable_cores


def conditions() -> dict[str, Any]:
    """This machine, what else it is doing, and the versions installed. To be asked for before the measuring begins."""
    return {
        "num_cores": os.cpu_count(),
        "load_average_before": round(os.getloadavg()[0], 2),
        "machine": machine_facts(),
        "versions": installed_versions(),
    }


def write_result(path: Path, document: dict[str, Any], markdown: str | None = None) -> None:
    """``path`` as JSON, and beside it the same as Markdown; the suffixes are set here."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if markdown is not None:
        path.with_suffix(".md").write_text(markdown, encoding="utf-8")


_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8")


def processor_facts() -> dict[str, str]:
    """Its name, which of the instruction sets above it has, and how many cores this process may use."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:  # not Linux
        text = ""
    cpu = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    flags = cpu.get("flags", "").split()
    return {
        "cpu": cpu.get("model name", platform.processor()),
        "flags": " ".join(name for name in _FLAGS if name in flags),
        "usable_cores": str(num_usable_cores()),
        "system": platform.platform(),
    }


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
