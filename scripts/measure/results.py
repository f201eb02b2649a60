"""What a measurement was made under, and where its result goes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from andrea_export.bundle.manifest import machine_facts
from andrea_export.core.installed import installed_versions


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
