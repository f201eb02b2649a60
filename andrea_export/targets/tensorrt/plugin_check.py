"""What a bundle's engine holds on disk, against what its build proved."""

from __future__ import annotations

from pathlib import Path

from andrea_export.report.schema import Check
from andrea_export.targets.tensorrt.facts import EngineEntry
from andrea_export.targets.tensorrt.files import PLUGIN
from andrea_export.targets.tensorrt.worker_build import file_contains
from andrea_model.config import AndreaConfig


def check_plugin(folder: Path, entry: EngineEntry, config: AndreaConfig) -> Check:
    """Whether an engine's GELUs are what it claims, all plugin or (native twin) none, and its plan has the library."""
    facts = entry.facts
    wanted = 0 if entry.native_twin else config.n_layer
    counts = facts.num_plugin_layers == wanted and facts.num_gelu_nodes == config.n_layer
    embedded = _embedded(folder / entry.file, folder / PLUGIN)
    return Check(
        name=f"plugin in {entry.file}",
        verdict="pass" if counts and embedded is not entry.native_twin else "fail",
        detail=(
            f"{facts.num_plugin_layers} plugin layers of {facts.num_gelu_nodes} GELU nodes and {config.n_layer} "
            f"blocks, library {'embedded' if embedded else 'not embedded'}"
        ),
    )


def _embedded(plan: Path, library: Path) -> bool:
    """Whether the library's bytes stand in the plan on disk; not if either is missing or empty."""
    if not all(file.is_file() and file.stat().st_size for file in (plan, library)):
        return False
    return file_contains(plan, library.read_bytes())
