"""The build: checkpoint → canonical ONNX → what other targets make of it → validation → sealed bundle.

Owns what is built (targets that this machine can, or an error) and where; the steps are the targets' own, and
``pipeline`` runs or reuses them.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from andrea_export.build.pipeline import Pipeline, StepOutcome
from andrea_export.bundle.layout import MANIFEST
from andrea_export.bundle.manifest import Manifest, open_bundle
from andrea_export.bundle.staging import check_output, staged
from andrea_export.core.errors import AndreaError, CheckpointError
from andrea_export.core.progress import Progress
from andrea_export.report.schema import Report
from andrea_export.targets.protocol import Build, Toolchain
from andrea_export.targets.recipe import Recipe
from andrea_export.targets.registry import ALWAYS, REGISTRY, in_build_order, target_of
from andrea_export.tokens.files import find_tokenizer
from andrea_export.weights.load import LoadedModel, load_model, resolve_origin
from andrea_export.weights.origin import WeightsOrigin
from andrea_export.weights.readers import Reading, open_checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """A finished bundle, how it was made, and what was left out because this machine cannot make it."""

    bundle: Path
    steps: tuple[StepOutcome, ...]
    report: Report
    manifest: Manifest
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What was assumed or left out of what was given, each a sentence."""


def build_bundle(
    output: Path,
    recipe: Recipe,
    *,
    checkpoint: Path | None,
    force: bool,
    cache_dir: Path,
    progress: Progress,
    toolchain: Toolchain | None = None,
    tokenizer: str | None = None,
    reading: Reading | None = None,
) -> BuildResult:
    """Builds the bundle ``output``, or brings an earlier one there up to date; ``force`` reuses nothing of that one.

    ``tokenizer``: a file or folder, ``bytes`` or ``none``; left out: the one in the checkpoint's folder, or bytes.
    ``reading``: what is said of a checkpoint that it does not say itself; the recipe's ``model`` is its shape.
    The bundle is written even if its validation fails: its report says what is wrong, and ``run`` refuses it.
    Raises: UsageError, CheckpointError, BackendUnavailable (a target asked for by name), PluginError, BuildError.
    """
    check_output(output)
    toolchain = toolchain or Toolchain()
    reading = replace(reading or Reading(), config=recipe.model)
    config, origin = resolve_origin(preset=recipe.preset, checkpoint=checkpoint, seed=recipe.seed, reading=reading)
    opened = open_checkpoint(checkpoint, reading) if checkpoint is not None else None
    by_default = opened is None or opened.bytes_by_default
    found = find_tokenizer(tokenizer, checkpoint, config, bytes_by_default=by_default)
    targets, left_out = _targets(recipe, toolchain)
    resolved = recipe.resolved(preset=origin.preset, targets=targets)
    for target in in_build_order(REGISTRY):
        target.check(config, resolved)
    previous = _previous(output) if not force else None
    with staged(output) as staging:
        build = Build(
            folder=staging.folder,
            recipe=resolved,
            config=config,
            origin=origin,
            load=_loader(recipe, checkpoint, origin, reading),
            tokenizer=found,
            cache_dir=cache_dir,
            toolchain=toolchain,
            progress=progress,
            previous=previous.record if previous is not None else None,
        )
        run = Pipeline(build=build, output=output, previous=previous, force=force)
        manifest, report = run.all_steps()
        staging.replaces = manifest is not previous
    return BuildResult(
        bundle=output,
        steps=tuple(run.outcomes),
        report=report,
        manifest=manifest,
        left_out=left_out,
        notes=(*(() if opened is None else opened.notes), *found.notes),
    )


def _targets(recipe: Recipe, toolchain: Toolchain) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The targets to build, and (only where none were asked for by name) those left out, each with its reason.

    Raises: BackendUnavailable for a target that was asked for and cannot be built here.
    """
    targets: list[str] = []
    left_out: list[str] = []
    for name in REGISTRY:
        if recipe.targets is None:
            problem = target_of(name).left_out(toolchain)
        elif name in (*recipe.targets, ALWAYS):
            problem = target_of(name).missing(toolchain)
            if problem is not None:
                raise problem
        else:
            continue
        if problem is None:
            targets.append(name)
        else:
            left_out.append(str(problem))
    return tuple(targets), tuple(left_out)


def _loader(
    recipe: Recipe, checkpoint: Path | None, origin: WeightsOrigin, reading: Reading
) -> Callable[[], LoadedModel]:
    """Loads the model once, when it is first wanted; by then it must still be of this origin."""

    @functools.cache
    def load() -> LoadedModel:
        loaded = load_model(preset=recipe.preset, checkpoint=checkpoint, seed=recipe.seed, reading=reading)
        if loaded.origin != origin:
            raise CheckpointError(f"checkpoint {checkpoint} changed while the bundle was being built")
        return loaded

    return load


def _previous(output: Path) -> Manifest | None:
    """The manifest of the bundle that is there, or None if there is none that can be read."""
    if not (output / MANIFEST).is_file():
        return None
    try:
        return open_bundle(output, verify=False).manifest
    except AndreaError:  # a damaged bundle is replaced, not repaired
        return None
