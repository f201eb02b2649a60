"""Validation: every layer of every candidate in a bundle against torch, and everything else a reviewer must know.

Each target says which candidates and checks prove it; comparing and judging are those of ``andrea_export.compare``.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from andrea_export.bundle.manifest import Bundle, open_bundle
from andrea_export.compare.compare import Compared, compare, not_measured
from andrea_export.compare.inputs import Inputs, cases_within, seeded_cases
from andrea_export.compare.plugin_maths import PluginMaths
from andrea_export.compare.sources.base import Source
from andrea_export.compare.sources.torch_source import TorchSource
from andrea_export.core.errors import BackendUnavailable, BundleError, ExportError
from andrea_export.core.names import layer_names
from andrea_export.core.profile import Profile
from andrea_export.core.progress import Progress
from andrea_export.graph.parameters import hashes_from_model, hashes_from_onnx, model_from_onnx
from andrea_export.judge.budget import formula
from andrea_export.judge.policy import Policy, policy_as_mapping
from andrea_export.judge.verdicts import Terms, judged
from andrea_export.report.schema import Candidate, Check, Report
from andrea_export.targets.protocol import Made, Record
from andrea_export.targets.recipe import Recipe
from andrea_export.targets.registry import REGISTRY, in_build_order
from andrea_export.validation.comparison import report_of
from andrea_export.weights.load import LoadedModel, load_model

STEP = "validate"

# A bundle is made on machines without a GPU: an engine that cannot run here is stated, not failed.
POLICY = Policy(not_measured="pass")


def validate_bundle(bundle_path: Path, *, checkpoint: Path | None, cache_dir: Path, progress: Progress) -> Report:
    """The report on a bundle as it is now; a file that is not the one that was sealed is a failed check.

    Without a checkpoint the reference's weights are made again from their seed or, for trained weights, taken from the
    bundle's own ONNX file where their hashes are those the manifest recorded at build time.
    Raises: BundleError (no bundle, or a checkpoint it was not made from), CheckpointError.
    """
    bundle = open_bundle(bundle_path, verify=False)
    progress.start("verify files")
    mismatches, num_files = bundle.contents.mismatches(), len(bundle.manifest.files)
    progress.finish("verify files", f"{num_files} files, {len(mismatches)} wrong")
    integrity = Check(
        name="files",
        verdict="fail" if mismatches else "pass",
        detail="; ".join(mismatches) or f"all {num_files} files match the manifest's sha256",
    )
    progress.start(STEP)
    try:
        loaded, source = reference_model(bundle, checkpoint)
    except ExportError as error:  # the weights were to be taken from the bundle's own file, and it is damaged
        return _unreadable(bundle, integrity, error)
    report = validate_files(
        bundle.path,
        loaded,
        recipe=bundle.manifest.recipe,
        record=bundle.manifest.record,
        weights_from=source,
        cache_dir=cache_dir,
        progress=progress,
    )
    report = replace(report, checks=(integrity, *report.checks))
    progress.finish(STEP, f"{len(report.layers)} rows, verdict {report.verdict}")
    return report


def validate_files(
    folder: Path,
    loaded: LoadedModel,
    *,
    recipe: Recipe,
    record: Record,
    weights_from: str,
    cache_dir: Path,
    progress: Progress,
) -> Report:
    """The report on what a build made, whether it is sealed yet or not: every target's candidates, and its checks."""
    config, origin = loaded.config, loaded.origin
    inputs = Inputs(cases=seeded_cases(config), source="seed 0")
    reference = TorchSource(loaded.model, origin, precision="fp64", provenance={})
    plugin_maths = PluginMaths(config, cache_dir)
    targets = in_build_order(REGISTRY)
    with tempfile.TemporaryDirectory(prefix="andrea-") as scratch:
        made = Made(folder=folder, scratch=Path(scratch), recipe=recipe, config=config, origin=origin, record=record)
        # By name: two targets may be proven by one and the same candidate.
        candidates = {source.identity.name: source for target in targets for source in target.sources(made)}
        compared = compare_within_profiles(
            reference, tuple(candidates.values()), inputs, observers=[plugin_maths], progress=progress
        )
        checks = tuple(check for target in targets for check in target.checks(made))
    maths = tuple(plugin_maths.results())
    report = report_of(reference, compared, inputs)
    report = replace(
        report,
        reference={
            **report.reference,
            "name": "torch fp64",
            "weights_from": weights_from,
            "origin_sha256": origin.checkpoint_sha256 or "",
        },
        candidates=(*report.candidates, *(candidate for candidate, _ in maths)),
        layers=(*report.layers, *(row for _, rows in maths for row in rows)),
        checks=checks,
    )
    return judged(report, Terms(policy=POLICY, origin={"name": "validate", "sha256": ""}))


def compare_within_profiles(
    reference: Source,
    candidates: Sequence[Source],
    inputs: Inputs,
    *,
    observers: Sequence[PluginMaths] = (),
    progress: Progress,
) -> list[Compared]:
    """Every candidate on the inputs or, where it runs only some shapes, on seeded ones that its profile takes."""
    found: list[Compared] = []
    groups: dict[Profile | None, list[Source]] = {}
    for source in candidates:
        reason = _why_not(source)
        if reason:
            found.append(not_measured(source, reason))
        else:
            groups.setdefault(source.profile, []).append(source)
    for profile, sources in groups.items():
        if profile is None:
            found += compare(reference, sources, inputs, observers=observers, progress=progress)
        else:
            own = Inputs(cases=cases_within(profile, reference.identity.config), source="seed 0")
            found += compare(reference, sources, own, progress=progress)
    order = {source.identity.name: index for index, source in enumerate(candidates)}
    return sorted(found, key=lambda entry: order[entry.source.identity.name])


def _why_not(source: Source) -> str:
    """Why a source cannot be compared here, as far as that is known before it is run; nothing where it can."""
    try:
        source.check_runnable()
        if source.profile is not None:
            cases_within(source.profile, source.identity.config)
    except BackendUnavailable as error:
        return str(error)
    return ""


def _unreadable(bundle: Bundle, integrity: Check, error: ExportError) -> Report:
    """The report on a bundle whose model cannot be read, so that nothing of it could be compared."""
    weights = Check(name="weights", verdict="fail", detail=str(error))
    return Report(
        reference={"name": "torch fp64", "weights": str(bundle.origin), "weights_from": "none that could be read"},
        inputs={},
        candidates=(Candidate(name="onnxruntime-cpu", verdict="fail", reason=str(error)),),
        checks=(integrity, weights),
        layers=(),
        layer_order=tuple(layer_names(bundle.config)),
        policy=policy_as_mapping(POLICY, {"name": "validate", "sha256": ""}),
        formula=formula(POLICY.k),
    )


def reference_model(bundle: Bundle, checkpoint: Path | None) -> tuple[LoadedModel, str]:
    """The reference with the weights the bundle was made from, and where they were taken from this time."""
    origin, expected = bundle.origin, dict(bundle.manifest.weights_sha256)
    if checkpoint is not None:
        loaded = load_model(preset=origin.preset, checkpoint=checkpoint, seed=0)
        if hashes_from_model(loaded.model) != expected:
            raise BundleError(
                f"{checkpoint} is not the checkpoint bundle {bundle.path} was made from ({origin})",
                hint="give the one it names, or leave out --checkpoint",
            )
        return loaded, f"checkpoint {checkpoint.name}"
    if not origin.trained and origin.seed is not None:
        loaded = load_model(preset=origin.preset, checkpoint=None, seed=origin.seed)
        if hashes_from_model(loaded.model) == expected:
            return loaded, f"seed {origin.seed}"
    model = model_from_onnx(bundle.model, bundle.config)
    found = hashes_from_onnx(bundle.model)
    num_same = sum(found.get(name) == sha256 for name, sha256 in expected.items())
    source = f"the bundle's model.onnx ({num_same} of {len(expected)} parameters have the checkpoint's hashes)"
    return LoadedModel(model=model, config=bundle.config, origin=origin), source
