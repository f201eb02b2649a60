"""What a measurement was made under, the processor among it, and where its result goes."""

from __future__ import annotations

import json
import os
import platform
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
