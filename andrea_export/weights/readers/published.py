"""The published training checkpoint of ANDREA: step, count, then weights and Adam's two moments, without a name. The
order of its tensors is a layout file's; where none is given, a built-in guess, which is called one wherever it is used.
"""

import functools
import hashlib
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from andrea_export.core.errors import CheckpointError, first_line
from andrea_export.weights.origin import config_with
from andrea_export.weights.readers.andrea import OURS
from andrea_export.weights.readers.base import Checkpoint, Orientation, Reading
from andrea_export.weights.readers.flat import APART, Entry, expanded, placed
from andrea_export.weights.readers.recognise import PUBLISHED_HEADER_BYTES, published_header
from andrea_model.config import PRESETS, AndreaConfig

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

GUESS = "the order of its tensors is assumed, for nothing that is published states it"
_HINT = "see andrea_export/weights/readers/andrea_layout.toml for an example"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """An order of tensors, how matrices are stored, and (where it says so) the shape of the model."""

    tensors: tuple[Entry, ...]
    orientation: Orientation
    config: AndreaConfig | None


def open_published(path: Path, reading: Reading) -> Checkpoint:
    """Raises: CheckpointError where the layout is wrong, or does not come to as many numbers as the file has."""
    header = published_header(path)
    if header is None:
        raise CheckpointError(f"checkpoint {path} changed while it was being read")
    layout = read_layout(reading.layout)
    config = reading.config or layout.config or preset_of_count(header.num_params)
    tensors: Mapping[str, Any] = {}
    if config is not None:
        try:
            shapes = list(expanded(layout.tensors, config))
        except ValueError as error:
            raise CheckpointError(f"layout {reading.layout}: {error}", hint=_HINT) from None
        tensors, end = placed(iter(shapes), path, offset=PUBLISHED_HEADER_BYTES, dtype="F32")
        num_found = (end - PUBLISHED_HEADER_BYTES) // 4
        if num_found != header.num_params:
            raise CheckpointError(
                f"checkpoint {path} has {header.num_params:,} parameters, and its layout comes to {num_found:,} in "
                f"{config.n_layer} blocks, d_model {config.d_model}, vocabulary {config.vocab_size}",
                hint="name its shape with --config, its order with --layout",
            )
    return Checkpoint(
        path=path,
        family=f"published training checkpoint, step {header.step}, {header.num_params:,} parameters",
        tensors=tensors,
        spelling=APART if "blocks.0.attn.q.weight" in tensors else OURS,
        config=config,
        orientation=layout.orientation,
        metadata={"step": str(header.step)},
        untrained="untrained weights: training step 0" if header.step == 0 else None,
        guess=GUESS if reading.layout is None else None,
        notes=(f"A GUESS: {GUESS}; a text's perplexity tells: andrea-export convert --text FILE",)
        if reading.layout is None
        else (),
        hint=lambda _: (
            "the file does not say its shape: name it with --config FILE"
            if config is None
            else "its order is a layout file's: --layout FILE"
        ),
        hashed=functools.partial(_sha256_of_weights, path, PUBLISHED_HEADER_BYTES + 4 * header.num_params),
    )


def preset_of_count(num_params: int) -> AndreaConfig | None:
    """The preset that has as many parameters, with its own head, without biases and parameters in its norms."""
    from andrea_model.model import parameter_shapes

    for preset in PRESETS.values():
        config = replace(preset, tied_head=False, bias=False, norm_parameters=False)
        if sum(math.prod(shape) for shape in parameter_shapes(config).values()) == num_params:
            return config
    return None


def read_layout(file: Path | None) -> Layout:
    """A layout file's order; the built-in guess where none is given. Raises: CheckpointError."""
    try:
        text = (
            (resources.files("andrea_export.weights.readers") / "andrea_layout.toml").read_text(encoding="utf-8")
            if file is None
            else file.read_text(encoding="utf-8")
        )
        content = tomllib.loads(text)
        if unknown := sorted(content.keys() - {"orientation", "tensors", "model"}):
            raise ValueError(f"unknown key '{unknown[0]}', expected orientation, tensors and model")
        orientation = content.get("orientation")
        if orientation not in ("in-out", "out-in"):
            raise ValueError(f"orientation is {json.dumps(orientation)}, expected in-out or out-in")
        entries = tuple(_entry(one) for one in content.get("tensors", ()))
        if not entries:
            raise ValueError("it names no tensors")
        config = config_with(content["model"]) if "model" in content else None
    except OSError as error:
        raise CheckpointError(f"layout {file}: {error.strerror}", hint=_HINT) from None
    except (ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"layout {file}: {first_line(error)}", hint=_HINT) from None
    return Layout(tensors=entries, orientation=orientation, config=config)


def _entry(content: Any) -> Entry:
    """Raises: ValueError for anything but a name and a shape."""
    if not isinstance(content, dict) or set(content) != {"name", "shape"} or not isinstance(content["name"], str):
        raise ValueError(f"a tensor is {json.dumps(content, default=str)}, expected a name and a shape")
    shape = content["shape"]
    if not isinstance(shape, list) or not all(
        isinstance(size, str) or (type(size) is int and 0 < size < 1 << 32) for size in shape
    ):
        raise ValueError(f"{content['name']} has shape {json.dumps(shape, default=str)}, expected a list of sizes")
    return Entry(name=content["name"], shape=tuple(shape))


def _sha256_of_weights(path: Path, num_bytes: int) -> str:
    """Of the header and the weights; the moments behind them are not read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while num_bytes and (chunk := file.read(min(num_bytes, 1 << 22))):
            digest.update(chunk)
            num_bytes -= len(chunk)
    return digest.hexdigest()
