"""``andrea-export convert``: a checkpoint in one format as one in another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from andrea_export.cli.options import (
    ConfigOption,
    JsonOption,
    LayoutOption,
    OrientationOption,
    PresetOption,
    RecogniseOption,
    TokenizerOption,
    option,
    reading_from,
)
from andrea_export.cli.output import emit_result, note, wrapped
from andrea_export.core.errors import UsageError

if TYPE_CHECKING:
    from andrea_export.compare.language.text_loss import TextLoss
    from andrea_export.weights.convert import Converted


def convert(
    source: Annotated[Path, typer.Argument(help="A checkpoint: a file, or a folder.", metavar="SOURCE")],
    destination: Annotated[
        Path,
        typer.Argument(
            help="NAME.safetensors, in our names; any other name is a folder that transformers loads.",
            metavar="DESTINATION",
        ),
    ],
    *,
    preset: PresetOption = None,
    config: ConfigOption = None,
    orientation: OrientationOption = None,
    layout: LayoutOption = None,
    recognise: RecogniseOption = False,
    tokenizer: TokenizerOption = None,
    text: Annotated[
        Path | None,
        option("--text", "A .txt file, or token ids: its loss is printed, beside log V, that of chance.", "FILE"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a checkpoint in another format, one tensor at a time, each in its own type.

    Exit 2: it cannot be read, or the destination exists; nothing is left behind.
    """
    from andrea_export.weights.convert import convert as converted
    from andrea_export.weights.shape import config_from_file

    if text is not None and not text.is_file():
        raise UsageError(f"text {text}: no such file")
    reading = reading_from(orientation, layout, recognise, config_from_file(config) if config is not None else None)
    done = converted(source, destination, preset=preset, reading=reading, tokenizer=tokenizer)
    for said in done.notes:
        note(f"note: {said}")
    loss = _loss(done, text) if text is not None else None
    emit_result(lambda: _as_json(done, loss), _lines(done, loss), as_json=as_json)


def _loss(done: Converted, text: Path) -> TextLoss:
    """How well what was written predicts a text. Raises: UsageError."""
    from andrea_export.compare.inputs import text_tokens
    from andrea_export.compare.language.text_loss import text_loss
    from andrea_export.weights.load import load_model

    tokens = text_tokens(text, done.config, done.tokenizer.open(done.destination))
    if len(tokens) < 2:
        raise UsageError(f"text {text} has {len(tokens)} token, expected at least 2")
    return text_loss(load_model(preset=None, checkpoint=done.destination, seed=0).model, tokens)


def _as_json(done: Converted, loss: TextLoss | None) -> dict[str, Any]:
    return {
        "destination": str(done.destination),
        "format": done.format,
        "source": {"family": done.family, "matrices": done.orientation},
        "config": asdict(done.config),
        "weights": str(done.origin),
        "guess": done.origin.guess,
        "tokenizer": done.tokenizer.facts.kind,
        "notes": list(done.notes),
        "text": None if loss is None else {**asdict(loss), "perplexity": loss.perplexity, "verdict": loss.verdict},
    }


def _lines(done: Converted, loss: TextLoss | None) -> Iterator[str]:
    yield from wrapped(f"{done.destination}: {done.format}, from {done.family} with matrices {done.orientation}")
    yield from wrapped(f"weights: {done.origin}")
    if loss is not None:
        yield from wrapped(
            f"text: {loss.nats:.3f} nats a token over {loss.num_tokens} tokens (perplexity {loss.perplexity:.4g}); "
            f"log V is {loss.bound:.3f}: {loss.verdict}"
        )
