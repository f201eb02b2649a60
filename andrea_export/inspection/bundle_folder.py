"""Inspection of a bundle: its manifest, and each of its parts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from andrea_export.bundle.manifest import Bundle, open_bundle
from andrea_export.core.errors import UsageError, first_line
from andrea_export.inspection.facts import Inspection
from andrea_export.inspection.files import inspect_file
from andrea_export.targets.ort_cpu.derive import linear_kinds
from andrea_export.weights.origin import preset_of


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
            **({} if mismatches else _linear_layers(bundle)),
            **{f"GPUs of {file}": ", ".join(gpus) for file, gpus in manifest.target_gpus.items()},
            **{f"machine: {key}": value for key, value in manifest.machine.items()},
        },
        notes=tuple(f"NOT as it was built: {problem}" for problem in mismatches)
        or (f"all {len(manifest.files)} files match the manifest's sha256", *broken),
        parts=tuple(parts),
    )


def _linear_layers(bundle: Bundle) -> dict[str, str]:
    """Graph for the CPU → what its linear layers are: ``44 in int8, 4 in fp32``."""
    found = {}
    for precision, files in bundle.contents.ort_cpu.items():
        try:
            kinds = Counter(linear_kinds(bundle.config, precision, bundle.manifest.recipe.ort_cpu).values())
        except UsageError as error:  # a recipe that no build takes
            found[files.decode] = first_line(error)
        else:
            numbers = ", ".join(f"{number} in {kind}" for kind, number in kinds.most_common())
            found[files.decode] = f"linear layers: {numbers}"
    return found
