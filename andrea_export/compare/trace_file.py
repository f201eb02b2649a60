"""Recorded traces: one run of one model as a safetensors file, to be compared anywhere.

The file holds the inputs, every layer the model could show for every case, and what it predicted; its metadata one JSON
header with a magic, a version, the model's shape and origin, a sha256 of every tensor and, where the weights were at
hand, the error torch itself makes in each precision, so that budgets can be derived where they are not.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open

from andrea_export import __version__
from andrea_export.compare.inputs import Arrays, Case, Inputs
from andrea_export.compare.language.suite import Predictions
from andrea_export.core.dtypes import DTYPES
from andrea_export.core.errors import TraceError, first_line
from andrea_export.core.names import TRACE_KEY
from andrea_export.core.strict import Strict
from andrea_model.config import AndreaConfig

MAGIC = "andrea-export/trace"
VERSION = 1

Basis = Mapping[str, Mapping[str, float]]
"""Layer (or language model's case) → metric → what a budget is a multiple of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionBasis(Strict):
    """What budgets derive from in one precision: torch's own errors, accumulated, local, and of the logits on text."""

    accumulated: Basis = field(default_factory=dict)
    local: Basis = field(default_factory=dict)
    language_model: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header(Strict):
    """What a trace says of itself."""

    magic: str = MAGIC
    version: int = VERSION
    andrea_export: str = __version__
    name: str
    precision: str
    config: AndreaConfig
    weights: str
    """Where the weights came from, in words."""
    origin: str
    """The same as one key (``sources.base.origin_key``)."""
    provenance: Mapping[str, str]
    cases: tuple[tuple[str, str | None], ...]
    """(name, past_of), in the order they were run."""
    inputs_source: str
    layers: tuple[str, ...]
    dtypes: Mapping[str, str]
    """Tensor → its type where safetensors has none of it for numpy (bf16)."""
    sha256: Mapping[str, str]
    greedy_tokens: tuple[int, ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict)
    basis: Mapping[str, PrecisionBasis] = field(default_factory=dict)


class TraceFile:
    """A trace on disk: its header read and checked, its tensors read one by one, each against its sha256.

    Raises: TraceError for a file that is missing, truncated, no trace, or of another version; reading a tensor raises
    it where that is not what was recorded, or holds NaN.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise TraceError(f"trace {path}: {'is a folder' if path.is_dir() else 'no such file'}")
        opener: Any = safe_open
        try:
            self._file = opener(path, framework="np")
        except (SafetensorError, OSError) as error:
            raise TraceError(
                f"trace {path} is not a whole safetensors file ({path.stat().st_size:,} bytes): {error}",
                hint="copy or record it again",
            ) from None
        self.header = _header(path, (self._file.metadata() or {}).get(TRACE_KEY))
        missing = sorted(set(self.header.sha256) - set(self._file.keys()))
        if missing:
            raise TraceError(f"trace {path} lacks {len(missing)} of its tensors: {', '.join(missing[:4])}")

    @property
    def inputs(self) -> Inputs:
        """The inputs it was recorded on."""
        cases = tuple(
            Case(
                name=name,
                input_ids=self.tensor(f"inputs/{name}/input_ids"),
                attention_mask=self.tensor(f"inputs/{name}/attention_mask"),
                position_ids=self.tensor(f"inputs/{name}/position_ids"),
                past_of=past_of,
            )
            for name, past_of in self.header.cases
        )
        text = tuple(int(token) for token in self.tensor("text"))
        return Inputs(cases=cases, text=text, source=self.header.inputs_source)

    @property
    def predictions(self) -> Predictions | None:
        """What the model predicted on the text; None where that was not recorded."""
        names = [name for name in self.header.sha256 if name.startswith("logits/")]
        if not names and not self.header.problems:
            return None
        return Predictions(
            logits={name.removeprefix("logits/"): self.tensor(name) for name in names},
            greedy_tokens=self.header.greedy_tokens,
            problems=dict(self.header.problems),
        )

    def verify(self) -> None:
        """Reads every tensor once, so that a damaged trace is refused before anything is run. Raises: TraceError."""
        for name in self.header.sha256:
            self.tensor(name)

    def layers(self, names: tuple[str, ...]) -> dict[str, Arrays]:
        """Case → those of the named layers that were recorded."""
        return {
            case: {name: self.tensor(key) for name in names if (key := f"layers/{case}/{name}") in self.header.sha256}
            for case, _ in self.header.cases
        }

    def tensor(self, name: str) -> npt.NDArray[Any]:
        """One tensor. Raises TraceError if it is not the one that was recorded, is not an input, or holds NaN."""
        if name not in self.header.sha256:
            raise TraceError(f"trace {self.path} has no tensor {name}", hint="record it again")
        value: npt.NDArray[Any] = self._file.get_tensor(name)
        if tensor_sha256(value) != self.header.sha256[name]:
            raise TraceError(f"trace {self.path}: {name} is not what was recorded", hint="copy or record it again")
        if name in self.header.dtypes:
            value = value.view(DTYPES["bf16"].numpy)
        self._check(name, value)
        return value

    def _check(self, name: str, value: npt.NDArray[Any]) -> None:
        """Raises TraceError for NaN, which `record` never writes, and for inputs that no model could be given."""
        where = first_nan(value)
        if where is not None:
            raise TraceError(
                f"trace {self.path}: {name} is NaN at [{', '.join(map(str, where))}]",
                hint="record it again; to see what a model with NaN does, compare the model itself",
            )
        if (name.startswith("inputs/") or name == "text") and value.dtype != np.int64:
            raise TraceError(
                f"trace {self.path}: {name} has type {value.dtype}, expected int64", hint="record it again"
            )
        if name.endswith("/input_ids") or name == "text":
            vocab_size = self.header.config.vocab_size
            outside = value[(value < 0) | (value >= vocab_size)]
            if outside.size:
                raise TraceError(
                    f"trace {self.path}: {name} holds {outside[0]}, outside the vocabulary (0 to {vocab_size - 1})",
                    hint="record it again",
                )


def first_nan(value: npt.NDArray[Any]) -> tuple[int, ...] | None:
    """Where a tensor's first NaN is; None where it has none."""
    if value.dtype.kind in "biu":
        return None
    nan = np.isnan(value)
    return tuple(int(part) for part in np.unravel_index(int(nan.argmax()), nan.shape)) if nan.any() else None


def _header(path: Path, text: str | None) -> Header:
    if text is None:
        raise TraceError(f"{path} is not a trace: its metadata has no '{TRACE_KEY}'", hint="make one with `record`")
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise TraceError(f"trace {path}: its header is not JSON: {error}") from None
    if not isinstance(content, dict) or content.get("magic") != MAGIC:
        raise TraceError(f"{path} is not a trace: its header does not begin with {MAGIC!r}")
    if content.get("version") != VERSION:
        raise TraceError(
            f"trace {path} has version {content.get('version')}, expected {VERSION}",
            hint="record it again, or use the version of andrea-export that wrote it",
        )
    try:
        header: Header = TypeAdapter(Header).validate_python(content)
    except (ValidationError, ValueError) as error:
        raise TraceError(f"trace {path}: its header is damaged: {first_line(error)}") from None
    return header


def tensor_sha256(array: npt.NDArray[Any]) -> str:
    """The hash of a tensor's bytes, as a header states it."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
