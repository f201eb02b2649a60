"""``andrea-export trace``: one token through one block, step by step, backends side by side."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from andrea_export.cli.options import CheckpointOption, JsonOption, PresetOption, SeedOption, tokens_from_text
from andrea_export.cli.output import emit_json, emit_lines, note, table
from andrea_export.errors import UsageError

if TYPE_CHECKING:
    from andrea_export.bundle import Bundle
    from andrea_export.checkpoint import LoadedModel
    from andrea_export.lesson import BackendLayers, Trace

_ONNXRUNTIME = "onnxruntime-"


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("trace")(trace)


def trace(
    bundle: Annotated[
        Path | None,
        typer.Argument(
            help="A bundle. Without one, the model of --preset, --checkpoint and --seed.",
            metavar="BUNDLE",
            show_default=False,
        ),
    ] = None,
    block: Annotated[int, typer.Option("--block", help="The block to follow the token through.", metavar="N")] = 0,
    tokens: Annotated[
        str, typer.Option("--tokens", help="The tokens before and including the one traced.", metavar="IDS")
    ] = "5,17,42",
    position: Annotated[
        int | None,
        typer.Option(
            "--position",
            help="Which of the tokens to trace, from 0. (default: the last)",
            metavar="N",
            show_default=False,
        ),
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            "--backend",
            help="torch, onnxruntime-cpu, onnxruntime-cuda, onnxruntime-tensorrt, onnxruntime-tensorrt-rtx, or an "
            "engine of the bundle such as tensorrt-rtx-fp16. Repeat it; the others are compared with the first. "
            "(default: torch and, where it is installed, onnxruntime-cpu)",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    preset: PresetOption = None,
    checkpoint: CheckpointOption = None,
    seed: SeedOption = None,
    as_json: JsonOption = False,
) -> None:
    """Follow one token through one block: every step with its shape and statistics.

    LayerNorm, q, k, v, attention weights, attention delta, residual add, LayerNorm, W_1, GELU, W_2, residual add.
    """
    ids = tokens_from_text(tokens)
    if bundle is not None and (preset is not None or seed is not None):
        raise UsageError(
            "--preset and --seed describe a model; a bundle already is one", hint="leave them out, or leave out BUNDLE"
        )

    from andrea_export.lesson import check_trace, trace_as_json, trace_from_layers

    names = tuple(dict.fromkeys(backend or _default_backends()))
    with _source(bundle, preset=preset, checkpoint=checkpoint, seed=seed) as source:
        at = check_trace(source.loaded.config, tokens=ids, position=position, block=block)
        runs = [_run(name, source, ids, block) for name in names]
        result = trace_from_layers(
            runs, source.loaded.config, weights=str(source.loaded.origin), tokens=ids, position=at, block=block
        )
    if as_json:
        emit_json(trace_as_json(result))
    else:
        emit_lines(_lines(result))


def _default_backends() -> tuple[str, ...]:
    if importlib.util.find_spec("onnxruntime") is None:
        note("note: onnxruntime is not installed, so torch stands alone (pip install 'andrea-export[cpu]')")
        return ("torch",)
    return ("torch", "onnxruntime-cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What is traced: the reference model, and the folder its canonical file is in, or can be put in."""

    loaded: LoadedModel
    folder: Path
    bundle: Bundle | None = None

    def model(self) -> Path:
        """The canonical ONNX file; without a bundle it is exported now."""
        path = self.folder / "model.onnx"
        if self.bundle is None and not path.exists():
            from andrea_export.canonical import export_canonical

            return export_canonical(self.loaded, self.folder)
        return path


@contextmanager
def _source(bundle: Path | None, *, preset: str | None, checkpoint: Path | None, seed: int | None) -> Iterator[_Source]:
    if bundle is not None:
        from andrea_export.bundle import open_bundle

        opened = open_bundle(bundle)
        yield _Source(loaded=_reference_of(opened, checkpoint), folder=opened.path, bundle=opened)
        return
    from andrea_export.checkpoint import load_model

    loaded = load_model(preset=preset, checkpoint=checkpoint, seed=seed or 0)
    with tempfile.TemporaryDirectory(prefix="andrea-trace-") as folder:
        yield _Source(loaded=loaded, folder=Path(folder))


def _reference_of(bundle: Bundle, checkpoint: Path | None) -> LoadedModel:
    """The torch model with the bundle's weights: from the checkpoint, from the seed, or from the bundle's own file."""
    from andrea_export.checkpoint import LoadedModel, load_model
    from andrea_export.errors import BundleError
    from andrea_export.weights import hashes_from_model, model_from_onnx

    origin = bundle.origin
    if checkpoint is not None:
        loaded = load_model(preset=origin.preset, checkpoint=checkpoint, seed=0)
        if hashes_from_model(loaded.model) != dict(bundle.manifest.weights_sha256):
            raise BundleError(
                f"{checkpoint} is not the checkpoint that {bundle.path} was made from ({origin})",
                hint="give the one it names, or leave out --checkpoint",
            )
        return loaded
    if origin.seed is not None:
        return load_model(preset=origin.preset, checkpoint=None, seed=origin.seed)
    note(f"note: torch runs with the weights in {bundle.model}; give --checkpoint for the ones it was made from")
    return LoadedModel(model=model_from_onnx(bundle.model, bundle.config), config=bundle.config, origin=origin)


def _run(name: str, source: _Source, ids: tuple[int, ...], block: int) -> BackendLayers:
    """What one backend computes. Raises: UsageError for a backend that is none, BackendUnavailable, RunError."""
    from andrea_export.lesson import (
        BackendLayers,
        attention_weights_name,
        lesson_layers,
        model_with_attention_weights,
        run_lesson,
    )

    config, layers = source.loaded.config, lesson_layers(block)
    if name == "torch":
        from andrea_export.backends.torch_reference import TorchSession

        with TorchSession(source.loaded.model, layers=layers) as torch_session:
            return BackendLayers(name=name, layers=run_lesson(torch_session, config, ids).layers)
    if name.startswith(_ONNXRUNTIME):
        from andrea_export.backends.onnxruntime import OnnxSession, provider_row

        provider = provider_row(name.removeprefix(_ONNXRUNTIME)).name
        if provider != "cpu":  # only the CPU provider's Attention is known to return its weights
            with OnnxSession(source.model(), provider, taps=layers) as session:
                return run_lesson(session, config, ids)
        with tempfile.TemporaryDirectory(prefix="andrea-trace-") as folder:
            model = model_with_attention_weights(source.model(), block, Path(folder))
            with OnnxSession(model, provider, taps=(*layers, attention_weights_name(block))) as session:
                return run_lesson(session, config, ids)
    return _run_engine(name, source, ids)


def _run_engine(name: str, source: _Source, ids: tuple[int, ...]) -> BackendLayers:
    from andrea_export.backends import engine_backend
    from andrea_export.errors import BackendUnavailable
    from andrea_export.lesson import BackendLayers, run_lesson
    from andrea_export.precision import PRECISIONS

    entries = {Path(entry.file).stem: entry for entry in source.bundle.manifest.engines} if source.bundle else {}
    if name not in entries:
        there = ", ".join(("torch", "onnxruntime-cpu", *entries))
        raise UsageError(f"unknown backend '{name}'", hint=f"here there are: {there}; engines are those of a BUNDLE")
    facts = entries[name].facts
    engine = engine_backend(facts.target)
    runnable = engine.can_run()
    if not runnable.available:
        raise BackendUnavailable(f"backend {name}: {runnable.reason}", hint=runnable.hint)
    with engine.open(source.folder / entries[name].file) as session:
        run = run_lesson(session, source.loaded.config, ids, cache_dtype=PRECISIONS[facts.precision].cache_dtype)
    return BackendLayers(name=name, layers=run.layers)


def _lines(result: Trace) -> Iterator[str]:
    config = result.config
    yield (
        f"token {result.tokens[result.position]} at position {result.position} of {','.join(map(str, result.tokens))} "
        f"through block {result.block} of {config.n_layer} (d_model {config.d_model}, {config.n_head} heads, "
        f"mlp_dim {config.mlp_dim})"
    )
    yield f"weights: {result.weights}"
    for name, source in result.attention_weights_from.items():
        yield f"attention weights of {name}: {source}"
    yield ""
    rows: list[tuple[str, ...]] = []
    for number, step in enumerate(result.steps):
        label = (f"{number:>2} {step.name}", step.formula, f"[{', '.join(map(str, step.shape))}]")
        for index, name in enumerate(result.backends):
            seen = step.observations.get(name)
            head = label if index == 0 else ("", "", "")
            if seen is None:
                rows.append((*head, name, *("fused away", "", "", "", "", "")))
                continue
            s = seen.statistics
            numbers = (f"{value:.6g}" for value in (s.mean, s.std, s.min, s.max, s.l2))
            difference = "" if seen.max_abs_difference is None else f"{seen.max_abs_difference:.2e}"
            rows.append((*head, name, *numbers, difference))
    headers = (
        "step",
        "formula",
        "shape",
        "backend",
        "mean",
        "std",
        "min",
        "max",
        "L2",
        f"max |Δ| to {result.backends[0]}",
    )
    yield from table(headers, rows, left=4)
