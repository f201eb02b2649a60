"""What of a processor decides which kernels run, for the scripts whose figures depend on it."""

from __future__ import annotations

import platform
from pathlib import Path

from andrea_export.runtime.cores import num_usable_cores

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
