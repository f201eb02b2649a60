"""Where a lesson gets its runs: the reference model, its canonical file, and every backend by its name."""

import importlib.metadata
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from andrea_export.bundle.manifest import Bundle, open_bundle
from andrea_export.core.errors import BackendUnavailable, RunError, UsageError
from andrea_export.core.precision import PRECISIONS
from andrea_export.lesson.formulas import attention_weights_name, lesson_layers
from andrea_export.lesson.lesson import BackendLayers, run_layers
from andrea_export.targets.tensorrt.facts import EngineEntry
from andrea_export.targets.tensorrt.flavours import engine_backend
from andrea_export.weights.load import LoadedModel, load_model

TORCH = "torch"
_ONNXRUNTIME = "onnxruntime-"


@dataclass(frozen=True, slots=True, kw_only=True)
class LessonModel:
    """What the lesson is about: the reference model, and the folder its canonical file is in, or can be put in."""

    loaded: LoadedModel
    weights_from: str
    """Where the reference's weights were taken from this time."""
    folder: Path
    bundle: Bundle | None = None

    def onnx_file(self) -> Path:
        """The canonical ONNX file; without a bundle it is exported now."""
        path = self.folder / "model.onnx"
        if self.bundle is None and not path.exists():
            from andrea_export.graph.canonical.export import export_canonical

            return export_canonical(self.loaded, self.folder)
        return path


@contextmanager
def lesson_model(
    bundle: Path | None, *, preset: str | None, checkpoint: Path | None, seed: int, backends: Sequence[str]
) -> Iterator[LessonModel]:
    """The bundle's model, its reference proven by the manifest's hashes; without a bundle, a model of its own.

    The backends are looked for first, so that nothing is loaded for one that is not here.
    Raises: UsageError (unknown backend), BackendUnavailable, BundleError, CheckpointError.
    """
    if bundle is None:
        _check_backends(backends, None)
        loaded = load_model(preset=preset, checkpoint=checkpoint, seed=seed)
        with tempfile.TemporaryDirectory(prefix="andrea-trace-") as folder:
            yield LessonModel(loaded=loaded, weights_from=str(loaded.origin), folder=Path(folder))
        return

    from andrea_export.validation.bundle import reference_model

    opened = open_bundle(bundle)
    _check_backends(backends, opened)
    loaded, weights_from = reference_model(opened, checkpoint)
    yield LessonModel(loaded=loaded, weights_from=weights_from, folder=opened.path, bundle=opened)


def run_backend(name: str, model: LessonModel, tokens: Sequence[int], block: int) -> BackendLayers:
    """What one backend computes. Raises: UsageError (an unknown backend), BackendUnavailable, RunError."""
    config, layers = model.loaded.config, lesson_layers(block)
    if name == TORCH:
        from andrea_export.sessions.torch_reference import TorchSession

        runs_in = f"fp32, torch {importlib.metadata.version('torch')} on the CPU"
        with TorchSession(model.loaded.model, layers=layers) as torch_session:
            return run_layers(torch_session, config, tokens, name=name, runs_in=runs_in)
    if name.startswith(_ONNXRUNTIME):
        from andrea_export.sessions.onnxruntime import OnnxSession, onnxruntime_version, provider_row

        provider = provider_row(name.removeprefix(_ONNXRUNTIME)).name
        with tempfile.TemporaryDirectory(prefix="andrea-trace-") as folder:
            file, taps = model.onnx_file(), layers
            if provider == "cpu":  # only the CPU provider's Attention is known to return its weights
                file = model_with_attention_weights(file, block, Path(folder))
                taps = (*layers, attention_weights_name(block))
            with OnnxSession(file, provider, taps=taps) as session:
                return run_layers(
                    session, config, tokens, name=name, runs_in=f"fp32, onnxruntime {onnxruntime_version()}"
                )
    entry = _engines(model.bundle)[name]
    facts = entry.facts
    with engine_backend(facts.target).open(model.folder / entry.file) as engine:
        return run_layers(
            engine,
            config,
            tokens,
            name=name,
            runs_in=f"{facts.precision}, {facts.tensorrt_version}",
            cache_dtype=PRECISIONS[facts.precision].cache_dtype,
        )


def _check_backends(names: Sequence[str], bundle: Bundle | None) -> None:
    """Raises: UsageError for an unknown name, BackendUnavailable for a backend that cannot run here."""
    engines = _engines(bundle)
    for name in names:
        if name == TORCH:
            continue
        if name.startswith(_ONNXRUNTIME):
            from andrea_export.sessions.onnxruntime import provider_availability, provider_row

            runnable = provider_availability(provider_row(name.removeprefix(_ONNXRUNTIME)).name)
        elif name in engines:
            runnable = engine_backend(engines[name].facts.target).can_run()
        else:
            there = ", ".join((TORCH, "onnxruntime-cpu", *engines))
            raise UsageError(
                f"unknown backend '{name}'", hint=f"here there are: {there}; engines are those of a BUNDLE"
            )
        if not runnable.available:
            raise BackendUnavailable(f"backend {name}: {runnable.reason}", hint=runnable.hint)


def _engines(bundle: Bundle | None) -> dict[str, EngineEntry]:
    return {Path(entry.file).stem: entry for entry in bundle.manifest.engines} if bundle is not None else {}


def model_with_attention_weights(model: Path, block: int, folder: Path) -> Path:
    """A copy of the model in which one block's attention weights are an output; everything else is as it was.

    Source: https://onnx.ai/onnx/operators/onnx__Attention.html: the fourth output, ``qk_matmul_output``, holds the
    values after softmax where ``qk_matmul_output_mode`` is 3. Raises: RunError for a graph that has no such node.
    """
    import onnx_ir as ir

    graph_model = ir.load(model)
    graph = graph_model.graph
    inside = f"blocks.{block}.attn"
    found = [node for node in graph if node.op_type == "Attention" and str(node.name).startswith(f"{inside}.")]
    if len(found) != 1:
        raise RunError(
            f"{model} has {len(found)} Attention nodes in {inside}, expected 1",
            hint="trace a model.onnx of andrea-export",
        )
    node = found[0]
    node.resize_outputs(4)
    node.attributes["qk_matmul_output_mode"] = ir.AttrInt64("qk_matmul_output_mode", 3)
    for unused in node.outputs[1:3]:
        unused.name = ""  # ONNX's spelling of an optional output that is left out
    weights = node.outputs[3]
    weights.name = attention_weights_name(block)
    weights.type = ir.TensorType(ir.DataType.FLOAT)
    graph.outputs.append(weights)
    path = folder / "model.onnx"
    ir.save(graph_model, path, external_data="model.onnx.data")
    return path
