"""Asks the file of each kind what is in it; of a bundle, its manifest and each of its parts. A JSON file of this
project is not inspected by itself: it says what to inspect instead."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from andrea_export.bundle.manifest import Bundle, open_bundle
from andrea_export.core.errors import PluginError, UsageError, first_line
from andrea_export.inspection.checkpoint_file import inspect_checkpoint, inspect_published
from andrea_export.inspection.engine_file import inspect_engine, inspect_plugin
from andrea_export.inspection.facts import WHAT_CAN_BE_INSPECTED, Inspection, largest_count, parameter_counts
from andrea_export.inspection.onnx_file import inspect_onnx
from andrea_export.operators.cpu_path import cpu_path
from andrea_export.targets.ort_cpu.derive import linear_kinds
from andrea_export.targets.ort_cpu.files import LIBRARY
from andrea_export.weights.origin import preset_of
from andrea_export.weights.readers import is_checkpoint_folder
from andrea_export.weights.readers.recognise import FileKind, recognise

_LARGEST_JSON = 1 << 28


def refuse_json(path: Path) -> NoReturn:
    """Raises UsageError for a JSON file, which may well be one that this program wrote."""
    try:
        content = json.loads(path.read_bytes()) if path.stat().st_size < _LARGEST_JSON else None
    except (ValueError, RecursionError):
        content = None
    content = content if isinstance(content, dict) else {}
    schema = str(content.get("schema"))
    if schema.startswith("andrea-export/manifest/"):
        raise UsageError(f"{path} is the manifest of a bundle", hint=f"inspect the bundle itself: {path.parent}")
    if schema.startswith("andrea-export/report/"):
        raise UsageError(
            f"{path} is the report of a validation, verdict {content.get('verdict')}",
            hint=f"it is text; inspect the bundle it lies in: {path.parent}",
        )
    raise UsageError(
        f"{path} begins like JSON and is not a checkpoint, ONNX file, engine or bundle",
        hint=WHAT_CAN_BE_INSPECTED,
    )


INSPECTORS: Mapping[FileKind, Callable[[Path], Inspection]] = {
    "checkpoint": inspect_checkpoint,
    "trace": inspect_checkpoint,  # its tensors, like those of any safetensors file
    "pickle": inspect_checkpoint,
    "llm.c": inspect_checkpoint,
    "published-checkpoint": inspect_published,
    "onnx": inspect_onnx,
    "engine": inspect_engine,
    "plugin": inspect_plugin,
    "json": refuse_json,
}


def inspect_path(path: Path) -> Inspection:
    """What the path is. Raises: UsageError for a path that is missing or of no known kind, and the reader's own error
    for one that is damaged."""
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder", hint=WHAT_CAN_BE_INSPECTED)
    if is_checkpoint_folder(path):
        return inspect_checkpoint(path)
    return inspect_bundle(path) if path.is_dir() else inspect_file(path)


def inspect_file(path: Path) -> Inspection:
    """What a file is. Raises: UsageError for one of no known kind, and the reader's own error if damaged."""
    kind = recognise(path)
    if kind == "empty":
        raise UsageError(f"{path} is empty", hint=WHAT_CAN_BE_INSPECTED)
    if kind not in INSPECTORS:
        raise UsageError(f"{path} is neither a file nor a folder", hint=WHAT_CAN_BE_INSPECTED)
    return INSPECTORS[kind](path)


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
            "tokenizer": manifest.tokenizer.kind,
            "precisions": ", ".join(manifest.recipe.precisions),
            **({} if mismatches else {**_linear_layers(bundle), **_cpu_operators(bundle)}),
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
            found[files.graph] = first_line(error)
        else:
            numbers = ", ".join(f"{number} in {kind}" for kind, number in kinds.most_common())
            found[files.graph] = f"linear layers: {numbers}"
    return found


def _cpu_operators(bundle: Bundle) -> dict[str, str]:
    """What the int8 and int4 graphs compute with here. Loads the library, whose hash was seen to match."""
    facts = bundle.manifest.cpu_library
    if facts is None:
        return {}
    try:
        here = f"takes the path {cpu_path(bundle.path / LIBRARY)}"
    except PluginError as error:
        here = f"takes the graphs' functions, several times slower: {first_line(error)}"
    return {LIBRARY: f"for {facts.machine}, by {facts.host_compiler}; this processor {here}"}


def inspection_as_json(inspection: Inspection) -> dict[str, Any]:
    """The inspection as plain JSON values, the arithmetic included."""
    document = asdict(inspection)
    document["arithmetic"] = list(inspection.arithmetic)
    if inspection.config is not None:
        counts = parameter_counts(inspection.config)
        document["parameters"] = {
            "exact": counts.exact,
            "untied_without_biases_and_layer_norms": counts.untied_matrices,
            "untied_with_everything": largest_count(inspection.config),
            "trunk": counts.trunk,
            "mlp_matrices": counts.all_mlp_matrices,
            "token_embedding": counts.token_embedding,
            "position_embedding": counts.position_embedding,
            "biases": counts.biases,
            "layer_norms": counts.layer_norms,
        }
    document["parts"] = [inspection_as_json(part) for part in inspection.parts]
    return document
