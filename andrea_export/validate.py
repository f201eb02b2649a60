"""Validation: every layer of every candidate in a bundle against torch, and everything else a reviewer must know.

Owns which candidates a bundle has, and its checks; comparing and judging are those of ``andrea_export.diff``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from andrea_export.bundle import MODEL, Bundle, EngineEntry, open_bundle
from andrea_export.checkpoint import LoadedModel, load_model
from andrea_export.diff.cases import Inputs, seeded_cases
from andrea_export.diff.compare import compare
from andrea_export.diff.engine import Judge, judged, report_of
from andrea_export.diff.policy import Policy
from andrea_export.diff.sources import EngineSource, OnnxSource, Source, Sources, TorchSource
from andrea_export.errors import AndreaError, BundleError
from andrea_export.plugin_maths import PluginMaths
from andrea_export.precision import PRECISIONS
from andrea_export.progress import Progress
from andrea_export.report import Check, Report
from andrea_export.weights import check_weights, hashes_from_model, hashes_from_onnx, model_from_onnx
from andrea_model.config import AndreaConfig

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
    mismatches = bundle.mismatches()
    progress.finish("verify files", f"{len(bundle.manifest.files)} files, {len(mismatches)} wrong")
    integrity = Check(
        name="files",
        verdict="fail" if mismatches else "pass",
        detail="; ".join(mismatches) or f"all {len(bundle.manifest.files)} files match the manifest's sha256",
    )
    loaded, source = reference_model(bundle, checkpoint)
    progress.start(STEP)
    report = validate_files(
        bundle.path,
        loaded,
        engines=bundle.manifest.engines,
        weights_sha256=bundle.manifest.weights_sha256,
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
    engines: Sequence[EngineEntry],
    weights_sha256: Mapping[str, str] | None = None,
    weights_from: str,
    cache_dir: Path,
    progress: Progress,
) -> Report:
    """The report on the model file and engines in a folder, whether sealed yet or not."""
    config, origin = loaded.config, loaded.origin
    model = folder / MODEL
    inputs = Inputs(cases=seeded_cases(config), source="seed 0")
    reference = TorchSource(loaded.model, origin, precision="fp64", provenance={})
    plugin_maths = PluginMaths(config, cache_dir)
    with Sources() as sources:
        candidates: list[Source] = [
            OnnxSource(
                model, config, origin, precision=PRECISIONS["fp32"], name="onnxruntime-cpu", provenance={"file": MODEL}
            )
        ]
        # The graph an engine of a precision is built from, on the CPU: proves the mixed-precision rule itself.
        mixed = [name for name in dict.fromkeys(entry.facts.precision for entry in engines) if name != "fp32"]
        candidates += [sources.mixed(model, config, origin, PRECISIONS[name]) for name in mixed]
        candidates += [EngineSource(folder / entry.file, entry, config, origin) for entry in engines]
        compared = compare(reference, candidates, inputs, observers=[plugin_maths], progress=progress)
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
        checks=(
            _check_weights(model, weights_sha256 or hashes_from_model(loaded.model)),
            *(_check_plugin(entry, config) for entry in engines),
        ),
    )
    return judged(report, Judge(policy=POLICY, origin={"name": "validate", "sha256": ""}))


def _check_weights(model: Path, expected: Mapping[str, str]) -> Check:
    try:
        return check_weights(model, expected)
    except (OSError, ValueError, TypeError, AndreaError) as error:  # a damaged ONNX file ends in one of these
        return Check(name="weights", verdict="fail", detail=f"{model.name} cannot be read: {error}")


def _check_plugin(entry: EngineEntry, config: AndreaConfig) -> Check:
    """Whether the engine's GELUs are what it claims: all plugin, or (native twin) none."""
    facts = entry.facts
    wanted = 0 if entry.native_twin else config.n_layer
    holds = facts.num_plugin_layers == wanted and facts.num_gelu_nodes in (wanted, config.n_layer)
    embedded = entry.native_twin or facts.plugin_embedded
    return Check(
        name=f"plugin in {entry.file}",
        verdict="pass" if holds and embedded else "fail",
        detail=(
            f"{facts.num_plugin_layers} plugin layers of {facts.num_gelu_nodes} GELU nodes and {config.n_layer} "
            f"blocks, library {'embedded' if facts.plugin_embedded else 'not embedded'}"
        ),
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
