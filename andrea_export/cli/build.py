"""``andrea-export build``: from the torch reference to a bundle that is proven to be the same model."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from andrea_export.cli.judged import exit_with_outcome, screen
from andrea_export.cli.options import (
    CacheDirOption,
    CheckpointOption,
    ConfigOption,
    JsonOption,
    LayoutOption,
    OrientationOption,
    PrecisionChoice,
    PresetOption,
    RecogniseOption,
    SeedOption,
    TargetChoice,
    TokenizerOption,
    cache_dir_from,
    option,
    reading_from,
    toolchain_from_environment,
)
from andrea_export.cli.output import emit_result, note, size, wrapped
from andrea_export.cli.progress import progress_on_stderr
from andrea_export.core.lines import table
from andrea_export.core.precision import ENGINE_PRECISIONS, ORT_PRECISIONS
from andrea_export.targets.registry import REGISTRY

if TYPE_CHECKING:
    from andrea_export.build.build import BuildResult
    from andrea_export.targets.recipe import Recipe
    from andrea_export.weights.readers import Reading


def _either(names: Iterable[str]) -> str:
    """``a, b or c``."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


OutputArgument = Annotated[
    Path | None,
    typer.Argument(help="The bundle to make. [default: the preset's name, here]", metavar="OUTPUT", show_default=False),
]
TargetOption = Annotated[
    list[TargetChoice] | None,
    option(
        "--target",
        f"What to make: {_either(REGISTRY)}. Repeat it. [default: all this machine can]",
        "TARGET",
    ),
]
PrecisionOption = Annotated[
    list[PrecisionChoice] | None,
    option(
        "--precision",
        f"Of the engines: {', '.join(ENGINE_PRECISIONS)}; of ort-cpu: {', '.join(ORT_PRECISIONS)}. Repeat it. "
        "The ONNX file is always fp32. [default: fp32]",
        "PRECISION",
    ),
]
RecipeOption = Annotated[Path | None, option("--recipe", "A recipe in TOML; options win over its keys.", "FILE")]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Make every step again, reuse nothing of an earlier bundle.")
]


def build(
    output: OutputArgument = None,
    *,
    preset: PresetOption = None,
    checkpoint: CheckpointOption = None,
    config: ConfigOption = None,
    orientation: OrientationOption = None,
    layout: LayoutOption = None,
    recognise: RecogniseOption = False,
    seed: SeedOption = None,
    tokenizer: TokenizerOption = None,
    target: TargetOption = None,
    precision: PrecisionOption = None,
    recipe: RecipeOption = None,
    force: ForceOption = False,
    cache_dir: CacheDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Build a bundle: ONNX, plugin, engines, and the proof that they are the model. Exit 1 where the proof fails.

    A step whose inputs have not changed is reused, and says so. The bundle appears whole or not at all.
    """
    from andrea_export.build.build import build_bundle
    from andrea_export.weights.shape import config_from_file

    options: dict[str, Any] = {
        "preset": preset,
        "seed": seed,
        "targets": _values(target),
        "precisions": _values(precision),
    }
    if config is not None:
        options["model"] = asdict(config_from_file(config))
    merged = _recipe(recipe, options)
    reading = reading_from(orientation, layout, recognise)
    with progress_on_stderr() as progress:
        result = build_bundle(
            output if output is not None else _default_output(merged, checkpoint, reading),
            merged,
            checkpoint=checkpoint,
            force=force,
            cache_dir=cache_dir_from(cache_dir),
            progress=progress,
            toolchain=toolchain_from_environment(),
            tokenizer=tokenizer,
            reading=reading,
        )
    for text in result.notes:
        note(f"note: {text}")
    _show(result, merged.precisions, as_json=as_json)
    exit_with_outcome(result.report)


def _values(choices: Sequence[Enum] | None) -> list[str] | None:
    return [choice.value for choice in choices] if choices else None


def _recipe(file: Path | None, options: dict[str, Any]) -> Recipe:
    """The recipe file's keys with the given options over them."""
    from andrea_export.targets.recipe import recipe_from_mapping, recipe_from_toml

    keys = recipe_from_toml(file) if file is not None else {}
    given = {key: value for key, value in options.items() if value is not None}
    return recipe_from_mapping({**keys, **given}, where=f"recipe {file}" if file is not None else "options")


def _default_output(recipe: Recipe, checkpoint: Path | None, reading: Reading) -> Path:
    """The preset's name in the working directory; ``andrea`` for a checkpoint whose shape is not a preset's."""
    from andrea_export.weights.load import resolve_origin

    reading = replace(reading, config=recipe.model)
    _, origin = resolve_origin(preset=recipe.preset, checkpoint=checkpoint, seed=recipe.seed, reading=reading)
    return Path(origin.preset or "andrea")


def _show(result: BuildResult, asked: Sequence[str], *, as_json: bool) -> None:
    """Prints what was built, how it was proven, and which of the precisions that were asked for came to nothing."""
    from andrea_export.report.render.terminal import with_verdict_again

    built = result.manifest.recipe.precisions
    if missing := [name for name in ENGINE_PRECISIONS if name in asked and name not in ("fp32", *built)]:
        note(f"note: {', '.join(missing)} was not built: precisions are of engines, and no engine target was built")
    emit_result(lambda: _as_json(result), with_verdict_again(_lines(result)), as_json=as_json)


def _as_json(result: BuildResult) -> dict[str, Any]:
    manifest, candidates = result.manifest, result.report.candidates
    return {
        "verdict": result.report.verdict,
        "first_failure": result.report.first_failure,
        "candidates": [{"name": c.name, "verdict": c.verdict, "reason": c.reason} for c in candidates],
        "not_measured": [candidate.name for candidate in candidates if candidate.verdict == "not-measured"],
        "bundle": str(result.bundle),
        "weights": str(manifest.origin),
        "trained": manifest.origin.trained,
        "steps": [
            {"name": step.name, "reused": step.reused, "why": step.why, "seconds": round(step.seconds, 3)}
            for step in result.steps
        ],
        "left_out": list(result.left_out),
        "files": {
            name: {"num_bytes": entry.num_bytes, "sha256": entry.sha256} for name, entry in manifest.files.items()
        },
        "report": str(result.bundle / "report.json"),
    }


def _lines(result: BuildResult) -> Iterator[str]:
    from andrea_export.report.render.terminal import failure_lines, proof_lines, verdict_line

    report, manifest = result.report, result.manifest
    yield verdict_line(report, str(result.bundle), screen())
    yield from failure_lines(report)
    yield f"weights: {manifest.origin}"
    yield ""
    if not (sys.stdout.isatty() and sys.stderr.isatty()):  # there, the progress above has said it
        yield "steps"
        rows = [
            (step.name, f"reused: {step.why}" if step.reused else step.why, f"{step.seconds:.1f} s")
            for step in result.steps
        ]
        yield from (f"  {line}" for line in table(("step", "how", "time"), rows, left=2))
        yield ""
    if result.left_out:
        yield from (line for reason in result.left_out for line in wrapped(f"left out: {reason}"))
        yield ""
    yield f"made in {result.bundle}/"
    files = [(name, size(entry.num_bytes)) for name, entry in manifest.files.items()]
    files.append(("manifest.json", size((result.bundle / "manifest.json").stat().st_size)))
    yield from (f"  {line}" for line in table(("file", "size"), files))
    yield ""
    yield "proven"
    yield from (f"  {line}" for line in proof_lines(report, screen()))
    yield f"  report: {result.bundle / 'report.json'}"
