"""The build: checkpoint → canonical ONNX → plugin → engines → validation → sealed bundle.

Owns what is built (targets that this machine can, or an error) and where; ``pipeline.py`` owns the steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from andrea_export.build.pipeline import Pipeline, StepOutcome, Toolchain
from andrea_export.bundle.contents import MANIFEST
from andrea_export.bundle.manifest import Manifest, open_bundle
from andrea_export.bundle.staging import check_output, staged
from andrea_export.core.errors import AndreaError, BackendUnavailable
from andrea_export.core.progress import Progress
from andrea_export.core.targets import ENGINE_TARGETS, EngineTarget, Target
from andrea_export.report.schema import Report
from andrea_export.targets.engines import engine_backend
from andrea_export.targets.recipe import Recipe
from andrea_export.weights.load import resolve_origin


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """A finished bundle, how it was made, and what was left out because this machine cannot make it."""

    bundle: Path
    steps: tuple[StepOutcome, ...]
    report: Report
    manifest: Manifest
    left_out: tuple[str, ...] = ()


def build_bundle(
    output: Path,
    recipe: Recipe,
    *,
    checkpoint: Path | None,
    force: bool,
    cache_dir: Path,
    progress: Progress,
    toolchain: Toolchain | None = None,
) -> BuildResult:
    """Builds the bundle ``output``, or brings an earlier one there up to date; ``force`` reuses nothing of that one.

    The bundle is written even if its validation fails: its report says what is wrong, and ``run`` refuses it.
    Raises: UsageError, CheckpointError, BackendUnavailable (a target asked for by name), PluginError, BuildError.
    """
    check_output(output)
    toolchain = toolchain or Toolchain()
    config, origin = resolve_origin(preset=recipe.preset, checkpoint=checkpoint, seed=recipe.seed)
    targets, left_out = _targets(recipe, toolchain)
    # Before anything is built. These import onnx_ir, which other commands need not wait for.
    from andrea_export.targets.ort_cpu.derive import check_layers
    from andrea_export.targets.tensorrt.backend import check_profile

    if set(targets) & set(ENGINE_TARGETS):
        check_profile(config, recipe.profile)
    check_layers(config, recipe.ort_precisions if "ort-cpu" in targets else (), recipe.ort_cpu)
    previous = _previous(output) if not force else None
    with staged(output) as staging:
        run = Pipeline(
            folder=staging.folder,
            output=output,
            recipe=recipe,
            checkpoint=checkpoint,
            config=config,
            origin=origin,
            targets=targets,
            cache_dir=cache_dir,
            progress=progress,
            previous=previous,
            force=force,
            toolchain=toolchain,
        )
        manifest, report = run.all_steps()
        staging.replaces = manifest is not previous
    return BuildResult(
        bundle=output, steps=tuple(run.outcomes), report=report, manifest=manifest, left_out=tuple(left_out)
    )


def _targets(recipe: Recipe, toolchain: Toolchain) -> tuple[tuple[Target, ...], list[str]]:
    """The targets to build, and (only where none were asked for by name) those left out, each with its reason.

    Raises: BackendUnavailable for a target that was asked for and cannot be built here.
    """
    asked = recipe.targets
    targets: list[Target] = ["onnx"]
    left_out: list[str] = []
    if asked is not None and "ort-cpu" in asked:
        targets.append("ort-cpu")
    for target in ENGINE_TARGETS:
        if asked is not None and target not in asked:
            continue
        problem = _missing_for(target, toolchain)
        if problem is None:
            targets.append(target)
        elif asked is not None:
            raise problem
        else:
            left_out.append(str(problem))
    return tuple(targets), left_out


def _missing_for(target: EngineTarget, toolchain: Toolchain) -> BackendUnavailable | None:
    from andrea_export.operators import compiler_status

    engines = engine_backend(target).can_build()
    if not engines.available:
        return BackendUnavailable(f"target {target}: {engines.reason}", hint=engines.hint)
    missing = [tool for tool in compiler_status(toolkit_root=toolchain.cuda_root) if not tool.found]
    if missing:
        names = ", ".join(tool.name for tool in missing)
        return BackendUnavailable(
            f"target {target}: the plugin cannot be compiled without {names}",
            hint="; ".join(dict.fromkeys(tool.hint for tool in missing if tool.hint)),
        )
    return None


def _previous(output: Path) -> Manifest | None:
    """The manifest of the bundle that is there, or None if there is none that can be read."""
    if not (output / MANIFEST).is_file():
        return None
    try:
        return open_bundle(output, verify=False).manifest
    except AndreaError:  # a damaged bundle is replaced, not repaired
        return None
