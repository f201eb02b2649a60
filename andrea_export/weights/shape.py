"""The shape of a model in a file of its own: what ``--config`` takes."""

import json
import sys
from pathlib import Path
from typing import Any

from andrea_export.core.errors import CheckpointError, first_line
from andrea_export.weights.origin import config_with
from andrea_export.weights.readers.gpt2 import config_of
from andrea_model.config import AndreaConfig

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_HINT = "TOML or JSON with the keys of AndreaConfig (docs/guides/checkpoints.md), or a config.json of GPT-2"


def config_from_file(file: Path) -> AndreaConfig:
    """The shape that a file states, in TOML or JSON: under our keys, or as Hugging Face's config.json of GPT-2.

    Raises: CheckpointError for a file that is missing or states no shape.
    """
    try:
        text = file.read_text(encoding="utf-8")
        content: Any = json.loads(text) if text.lstrip()[:1] == "{" else tomllib.loads(text)
        if "model_type" in content:
            return config_of(content, file)
        return config_with(content.get("model", content))
    except OSError as error:
        raise CheckpointError(f"configuration {file}: {error.strerror}", hint=_HINT) from None
    except (ValueError, TypeError, RecursionError, AttributeError) as error:
        raise CheckpointError(f"configuration {file}: {first_line(error)}", hint=_HINT) from None
