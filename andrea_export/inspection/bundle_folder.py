"""Inspection of a bundle: its manifest, and each of its parts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from andrea_export.bundle import open_bundle
from andrea_export.errors import UsageError, first_line
from andrea_export.inspection.facts import Inspection, preset_of
from andrea_export.inspection.files import inspect_file
from andrea_export.ort_cpu import linear_kinds
from andrea_export.recipe import OrtCpu
from andrea_export.targets import OrtPrecision
from andrea_model.config import AndreaConfig


def inspect_bundle(path: Path) -> Inspection:
    bundle = open_bundle(path, verify=False)
    manifest = bundle.manifest
    parts = [inspect_file(bundle.model)]
    broken = []
    for file in (*sorted((path / "engines").glob("*.plan")), *sorted((path / "plugins").glob("*.so"))):
        try:
            parts.append(inspect_file(file))
        except UsageError as error:
            broken.append(first_line(error))
    whole = parts[0]
    mismatches = bundle.contents.mismatches()
    return Inspection(
        kind="bundle",
        path=str(path),
        num_bytes=sum(file.stat().st_size for file in path.rglob("*") if file.is_file()),
        sha256=None,
        config=bundle.config,
        preset=preset_of(bundle.config),
        weights=str(bundle.origin),
        trained=bundle.origin.trained,
        num_parameters=whole.num_parameters,
        inputs=whole.inputs,
        outputs=whole.outputs,
        num_nodes=whole.num_nodes,
        made_by={
            **manifest.versions,
            "verdict when built": manifest.verdict,
            "precisions": ", ".join(manifest.recipe.precisions),
            **{
                files.decode: _linear_layers(bundle.config, precision, manifest.recipe.ort_cpu)
                for precision, files in bundle.contents.ort_cpu.items()
            },
            **{f"GPUs of {file}": ", ".join(gpus) for file, gpus in manifest.target_gpus.items()},
            **{f"machine: {key}": value for key, value in manifest.machine.items()},
        },
        notes=tuple(f"NOT as it was built: {problem}" for problem in mismatches)
        or (f"all {len(manifest.files)} files match the manifest's sha256", *broken),
        parts=tuple(parts),
    )


def _linear_layers(config: AndreaConfig, precision: OrtPrecision, options: OrtCpu) -> str:
    """What a graph's linear layers are: ``44 in int8, 4 in fp32``."""
    kinds = Counter(linear_kinds(config, precision, options).values())
    return "linear layers: " + ", ".join(f"{number} in {kind}" for kind, number in kinds.most_common())
