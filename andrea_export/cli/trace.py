"""``andrea-export trace``: one token through one block, step by step, backends side by side."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from andrea_export.cli.options import (
    CheckpointOption,
    JsonOption,
    PresetOption,
    SeedOption,
    option,
    tokens_from_ids,
    tokens_from_prompt,
)
from andrea_export.cli.output import emit_result, note, wrapped
from andrea_export.core.errors import UsageError
from andrea_export.core.lines import table

if TYPE_CHECKING:
    from andrea_export.lesson.backends import LessonModel
    from andrea_export.lesson.lesson import Lesson, Observation
    from andrea_export.tokens.tokenizer import Tokenizer


BundleArgument = Annotated[
    Path | None,
    typer.Argument(
        help="A bundle. Without one, the model of --preset, --checkpoint and --seed.",
        metavar="BUNDLE",
        show_default=False,
    ),
]
BlockOption = Annotated[
    int, option("--block", "The block to follow the token through, from 0.", "N", default_shown=True)
]
TokensOption = Annotated[
    str | None, option("--tokens", "The tokens before and including the one traced. [default: 5,17,42]", "IDS")
]
PromptOption = Annotated[str | None, option("--prompt", "The same as text, for the model's own tokenizer.", "TEXT")]
PositionOption = Annotated[
    int | None, option("--position", "Which of the tokens to trace, from 0. [default: the last]", "N")
]
BackendOption = Annotated[
    list[str] | None,
    option(
        "--backend",
        "torch, onnxruntime-cpu, onnxruntime-cuda, onnxruntime-tensorrt, onnxruntime-tensorrt-rtx, or an engine of the "
        "bundle such as tensorrt-rtx-fp16. Repeat it; the others are compared with the first. "
        "[default: torch and, where it is installed, onnxruntime-cpu]",
        "NAME",
    ),
]


def trace(
    bundle: BundleArgument = None,
    *,
    block: BlockOption = 0,
    tokens: TokensOption = None,
    prompt: PromptOption = None,
    position: PositionOption = None,
    backend: BackendOption = None,
    preset: PresetOption = None,
    checkpoint: CheckpointOption = None,
    seed: SeedOption = None,
    as_json: JsonOption = False,
) -> None:
    """Follow one token through one block: every step with its shape and statistics.

    LayerNorm, q, k, v, attention weights, attention delta, residual add, LayerNorm, W_1, GELU, W_2, residual add.
    """
    if tokens is not None and prompt is not None:
        raise UsageError("give --prompt or --tokens, one of them only", hint="see andrea-export trace --help")
    ids = tokens_from_ids("5,17,42" if tokens is None else tokens) if prompt is None else None
    if bundle is not None and (preset is not None or seed is not None):
        raise UsageError(
            "--preset and --seed describe a model; a bundle already is one", hint="leave them out, or leave out BUNDLE"
        )

    from andrea_export.lesson.backends import lesson_model, run_backend
    from andrea_export.lesson.lesson import checked_position, lesson_from_layers

    names = tuple(dict.fromkeys(backend or _default_backends()))
    with lesson_model(bundle, preset=preset, checkpoint=checkpoint, seed=seed or 0, backends=names) as model:
        if ids is None:
            ids = tokens_from_prompt(prompt or "", model.loaded.config.vocab_size, _tokenizer(model, checkpoint))
        at = checked_position(model.loaded.config, tokens=ids, position=position, block=block)
        runs = [run_backend(name, model, ids, block) for name in names]
        lesson = lesson_from_layers(
            runs, model.loaded.config, weights=str(model.loaded.origin), tokens=ids, position=at, block=block
        )
    emit_result(lambda: asdict(lesson), _lines(lesson, model.weights_from), as_json=as_json)


def _tokenizer(model: LessonModel, checkpoint: Path | None) -> Tokenizer:
    """The bundle's tokenizer, or the one in the checkpoint's folder. Raises: UsageError where there is none."""
    from andrea_export.tokens.files import find_tokenizer

    if model.bundle is not None:
        return model.bundle.contents.tokenizer()
    return find_tokenizer(None, checkpoint, model.loaded.config).open(checkpoint or Path())


def _default_backends() -> tuple[str, ...]:
    if importlib.util.find_spec("onnxruntime") is None:
        note("note: onnxruntime is not installed, so torch stands alone (pip install 'andrea-export[cpu]')")
        return ("torch",)
    return ("torch", "onnxruntime-cpu")


def _lines(lesson: Lesson, weights_from: str) -> Iterator[str]:
    config = lesson.config
    yield from wrapped(
        f"token {lesson.tokens[lesson.position]} at position {lesson.position} of {','.join(map(str, lesson.tokens))} "
        f"through block {lesson.block} of {config.n_layer} (d_model {config.d_model}, {config.n_head} heads, "
        f"mlp_dim {config.mlp_dim})"
    )
    yield from wrapped(f"weights: {lesson.weights}")
    if weights_from != lesson.weights:
        yield from wrapped(f"torch's weights are from {weights_from}")
    for name, how in lesson.runs_in.items():
        yield f"{name}: {how}"
    for name, origin in lesson.attention_weights_from.items():
        yield f"attention weights of {name}: {origin}"
    yield ""
    headers = ("", "mean", "std", "min", "max", "L2", "max |Δ|" if len(lesson.backends) > 1 else "")
    rows = [_row(name, step.observations.get(name)) for step in lesson.steps for name in lesson.backends]
    head, *body = table(headers, rows)
    if len(lesson.backends) > 1:
        yield f"max |Δ| is the largest difference to {lesson.backends[0]}"
    yield f"     {head}"
    for number, step in enumerate(lesson.steps):
        shape = ", ".join(map(str, step.shape))
        yield f"{number:>2}  {step.name}: {step.formula}   {step.layer} [{shape}]"
        for line in body[number * len(lesson.backends) : (number + 1) * len(lesson.backends)]:
            yield f"     {line}"


def _row(name: str, seen: Observation | None) -> tuple[str, ...]:
    if seen is None:
        return (name, "fused away", "", "", "", "", "")
    s = seen.statistics
    difference = "" if seen.max_abs_difference is None else f"{seen.max_abs_difference:.1e}"
    return (name, *(f"{value:.4g}" for value in (s.mean, s.std, s.min, s.max, s.l2)), difference)
