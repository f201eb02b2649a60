"""Our own checkpoints: safetensors under the model's names, every matrix ``[in, out]``: nothing is transposed."""

import json
from collections.abc import Mapping
from pathlib import Path

from andrea_export.core.errors import CheckpointError
from andrea_export.core.names import CONFIG_KEY, GUESS_KEY, WEIGHTS_KEY
from andrea_export.weights.origin import UNTRAINED
from andrea_export.weights.readers.base import Checkpoint, Reading, Spelling
from andrea_export.weights.readers.stored import Tensors
from andrea_model.config import PRESETS, AndreaConfig

OURS = Spelling(modules={})


def open_andrea(path: Path, tensors: Tensors, metadata: Mapping[str, str], reading: Reading) -> Checkpoint:
    """Raises: CheckpointError for a file that states an impossible shape."""
    weights = metadata.get(WEIGHTS_KEY, "")
    config = _config_of(metadata, path)
    return Checkpoint(
        path=path,
        family="andrea-export",
        tensors=tensors,
        spelling=OURS,
        config=config,
        orientation="in-out" if config is not None else reading.orientation,
        metadata=metadata,
        untrained=weights if weights.startswith(UNTRAINED) else None,
        guess=metadata.get(GUESS_KEY),
        hint=_shape_hint,
    )


def _config_of(metadata: Mapping[str, str], path: Path) -> AndreaConfig | None:
    """The shape that the metadata states, if it states one."""
    text = metadata.get(CONFIG_KEY)
    if text is None:
        return None
    try:
        return AndreaConfig(**json.loads(text))
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"checkpoint {path}: metadata '{CONFIG_KEY}' is not a configuration: {error}") from None


def _shape_hint(checkpoint: Checkpoint) -> str:
    """Which preset the file's own embedding suggests."""
    embedding = checkpoint.tensors.get("token_embed.weight")
    for name, config in PRESETS.items():
        if embedding is not None and embedding.shape == (config.vocab_size, config.d_model):
            return f"its token_embed.weight is that of {name}: use --preset {name}"
    return "see model/README.md for the names, docs/guides/checkpoints.md for what else can be read"
