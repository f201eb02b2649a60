"""A checkpoint in one format as one in another, a tensor at a time: what ``andrea-export convert`` does."""

from dataclasses import dataclass
from pathlib import Path

from andrea_export.tokens.files import FoundTokenizer, find_tokenizer
from andrea_export.weights.load import resolve_origin
from andrea_export.weights.origin import WeightsOrigin
from andrea_export.weights.readers import Reading, open_checkpoint
from andrea_export.weights.readers.base import described
from andrea_export.weights.write import write_andrea, write_gpt2
from andrea_model.config import AndreaConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """What was written, from what."""

    destination: Path
    format: str
    family: str
    orientation: str
    """Of the source's matrices."""
    config: AndreaConfig
    origin: WeightsOrigin
    tokenizer: FoundTokenizer
    notes: tuple[str, ...]


def convert(
    source: Path, destination: Path, *, preset: str | None, reading: Reading, tokenizer: str | None
) -> Converted:
    """Writes a checkpoint as our safetensors (a name that ends so) or else as a folder of Hugging Face's GPT-2.

    Raises: CheckpointError, UsageError. Nothing is left behind by either.
    """
    config, origin = resolve_origin(preset=preset, checkpoint=source, seed=0, reading=reading)
    opened = open_checkpoint(source, reading)
    opened.check(config)
    found = find_tokenizer(tokenizer, source, config, bytes_by_default=opened.bytes_by_default)
    notes = [*opened.notes, *found.notes]
    if destination.suffix == ".safetensors":
        write_andrea(destination, opened, config, origin)
    else:
        write_gpt2(destination, opened, config, origin, found)
        if config != config.of_the_lessons and config != _with_own_head(config):
            notes.append("GPT-2 has biases and norms with parameters: they are there as zeros and ones")
        if found.facts.kind == "segments":
            notes.append("segments have no form that transformers reads: the folder has no tokenizer")
    return Converted(
        destination=destination,
        format="safetensors" if destination.suffix == ".safetensors" else "Hugging Face GPT-2",
        family=opened.family,
        orientation=described(opened.orientation_in(config)),
        config=config,
        origin=origin,
        tokenizer=found,
        notes=tuple(notes),
    )


def _with_own_head(config: AndreaConfig) -> AndreaConfig:
    from dataclasses import replace

    return replace(config.of_the_lessons, tied_head=False)
