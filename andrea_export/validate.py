"""Validation: every layer of every candidate in a bundle against torch, and everything else a reviewer must know.

Owns which candidates there are and what each can be compared on; comparing is ``comparison.py``'s, budgets are
``judge.py``'s.
"""

from __future__ import annotations

import importlib.metadata
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from andrea_export.backends import engine_backend
from andrea_export.backends.onnxruntime import OnnxSession, onnxruntime_version, provider_availability
from andrea_export.backends.tensorrt_model import derive_engine_model
from andrea_export.bundle import Bundle, EngineEntry, open_bundle
from andrea_export.checkpoint import LoadedModel, load_model
from andrea_export.comparison import Reference, inputs_as_mapping, reference_of, rows_from
from andrea_export.errors import AndreaError, BackendUnavailable, BundleError
from andrea_export.plugin_maths import plugin_maths_rows
from andrea_export.precision import PRECISIONS
from andrea_export.progress import Progress
from andrea_export.recipe import PrecisionName
from andrea_export.report import Candidate, Check, LayerRow, Report
from andrea_export.specs import gelu_layers, graph_outputs, layer_names
from andrea_export.weights import check_weights, hashes_from_model, hashes_from_onnx, model_from_onnx
from andrea_model.config import AndreaConfig

STEP = "validate"
Measured = tuple[Candidate, tuple[LayerRow, ...]]


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
    config = loaded.config
    model = folder / "model.onnx"
    progress.detail(STEP, "torch in fp64")
    reference = reference_of(loaded.model)
    candidates: list[Candidate] = []
    rows: list[LayerRow] = []
    for candidate, found in _measurements(folder, model, config, reference, engines, cache_dir, progress):
        candidates.append(candidate)
        rows.extend(found)
    return Report(
        reference={
            "name": "torch fp64",
            "weights": str(loaded.origin),
            "weights_from": weights_from,
            "origin_sha256": loaded.origin.checkpoint_sha256 or "",
        },
        inputs=inputs_as_mapping(reference),
        candidates=tuple(candidates),
        checks=(
            _check_weights(model, weights_sha256 or hashes_from_model(loaded.model)),
            *(_check_plugin(entry, config) for entry in engines),
        ),
        layers=tuple(rows),
        layer_order=reference.layers,
        versions={"torch": importlib.metadata.version("torch"), "onnxruntime": onnxruntime_version()},
    )


def _measurements(
    folder: Path,
    model: Path,
    config: AndreaConfig,
    reference: Reference,
    engines: Sequence[EngineEntry],
    cache_dir: Path,
    progress: Progress,
) -> Iterator[Measured]:
    """Every candidate in turn, each measured or with the reason why not."""
    progress.detail(STEP, "onnxruntime on the CPU, fp32")
    yield _measure_onnx("onnxruntime-cpu", model, "fp32", config, reference)
    for precision in dict.fromkeys(entry.facts.precision for entry in engines):
        if precision != "fp32":
            progress.detail(STEP, f"onnxruntime on the CPU, {precision}")
            yield _measure_mixed(model, precision, config, reference)
    progress.detail(STEP, "the plugin's maths on the host")
    yield from plugin_maths_rows(reference, gelu_layers(config), cache_dir)
    for entry in engines:
        progress.detail(STEP, entry.file)
        yield _measure_engine(folder / entry.file, entry, config, reference)


def _measure_onnx(
    name: str, model: Path, precision: PrecisionName, config: AndreaConfig, reference: Reference
) -> Measured:
    """The graph as it ships, and again with every layer tapped; how far the taps moved the outputs is a fact."""
    availability = provider_availability("cpu")
    if not availability.available:
        return Candidate(name=name, verdict="not-measured", reason=availability.reason, precision=precision), ()
    layers = tuple(layer_names(config))
    outputs = tuple(spec.name for spec in graph_outputs(config))
    try:
        with OnnxSession(model, name=name) as session:
            shipped = reference.observe(session, precision)
        with OnnxSession(model, taps=layers, name=name) as session:
            tapped = reference.observe(session, precision)
    except BackendUnavailable as error:
        return Candidate(name=name, verdict="not-measured", reason=str(error), precision=precision), ()
    except AndreaError as error:
        return Candidate(name=name, verdict="fail", reason=str(error), precision=precision), ()
    rows = rows_from(tapped, reference, candidate=name, precision=precision, layers=layers)
    moved = [
        float(abs(shipped.arrays[output].astype("f8") - tapped.arrays[output].astype("f8")).max())
        for output in outputs
        if output in shipped.arrays and output in tapped.arrays
    ]
    facts = {
        "taps_moved_outputs_by": max(moved, default=0.0),
        "logits_max_abs_as_shipped": shipped.errors["logits"].max_abs,
    }
    return _candidate(name, precision, rows, facts, tapped.refusals), rows


def _measure_mixed(model: Path, precision: PrecisionName, config: AndreaConfig, reference: Reference) -> Measured:
    """The graph an engine of this precision is built from, on the CPU: proves the mixed-precision rule itself."""
    name = f"onnxruntime-cpu-{precision}"
    if precision == "bf16":
        reason = "onnxruntime's CPU provider has no bf16 kernels"
        return Candidate(name=name, verdict="not-measured", reason=reason, precision=precision), ()
    with tempfile.TemporaryDirectory(prefix="andrea-") as folder:
        derived = derive_engine_model(
            model,
            precision=PRECISIONS[precision],
            plugin=False,
            parser_knows_attention=True,
            folder=Path(folder),
            self_contained=True,
        )
        return _measure_onnx(name, derived.path, precision, config, reference)


def _measure_engine(engine: Path, entry: EngineEntry, config: AndreaConfig, reference: Reference) -> Measured:
    """The engine's own outputs: logits, each block's new key and value. Its inner layers are fused, without names."""
    facts = entry.facts
    name = f"{facts.target}-{facts.precision}{'-native' if entry.native_twin else ''}"
    known = {
        "plugin_layers": facts.num_plugin_layers,
        "gelu_implementations": dict(facts.gelu_implementations),
        "tf32": facts.tf32,
        "tensorrt_version": facts.tensorrt_version,
    }
    backend = engine_backend(facts.target)
    runnable = backend.can_run()
    if not runnable.available:
        return Candidate(
            name=name, verdict="not-measured", reason=runnable.reason, precision=facts.precision, facts=known
        ), ()
    try:
        with backend.open(engine) as session:
            outputs = [layer for layer in reference.layers if layer in session.output_names]
            seen = reference.observe(session, facts.precision)
    except BackendUnavailable as error:
        return Candidate(
            name=name, verdict="not-measured", reason=str(error), precision=facts.precision, facts=known
        ), ()
    except AndreaError as error:
        return Candidate(name=name, verdict="fail", reason=str(error), precision=facts.precision, facts=known), ()
    rows = rows_from(seen, reference, candidate=name, precision=facts.precision, layers=outputs)
    return _candidate(name, facts.precision, rows, known, seen.refusals), rows


def _candidate(
    name: str, precision: str, rows: Sequence[LayerRow], facts: Mapping[str, object], refusals: Sequence[str]
) -> Candidate:
    failed = [row.name for row in rows if row.verdict == "fail"]
    reasons = [f"{len(failed)} of {len(rows)} layers out of budget"] if failed else []
    return Candidate(
        name=name,
        verdict="fail" if failed or refusals or not rows else "pass",
        reason="; ".join([*reasons, *refusals]),
        precision=precision,
        first_failure=failed[0] if failed else None,
        facts=facts,
    )


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
