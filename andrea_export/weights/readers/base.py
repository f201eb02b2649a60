"""What a reader of checkpoints gives: a family's names, shapes and orientation in, the model's out."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from andrea_export.core.errors import CheckpointError
from andrea_export.core.hashing import sha256_of
from andrea_export.weights.readers.stored import FLOAT_TYPES, StoredTensor, Tensors, files_of
from andrea_model.config import AndreaConfig

if TYPE_CHECKING:
    import torch

Orientation = Literal["in-out", "out-in"]
"""How a matrix of y = x·W + b is stored: ``[in, out]``, as here and in GPT-2's Conv1D, or as nn.Linear does."""
_MATRIX = re.compile(r"blocks\.\d+\.(attn\.qkv|attn\.proj|mlp\.fc|mlp\.proj)\.weight")
_HOW = {"in-out": "[in, out]", "out-in": "[out, in]"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a user said of a checkpoint that it does not say itself. Nothing of it is said by default."""

    config: AndreaConfig | None = None
    """Its shape."""
    orientation: Orientation | None = None
    layout: Path | None = None
    """A layout file: the order of the tensors of a file that has no names."""
    recognised: bool = False
    """Names that nobody knows are read by shapes and order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """How a family names what the model holds.

    ``modules``: the model's module (``blocks.N.attn.qkv``) → the family's, with ``N`` for the block in both; several
    names are matrices whose outputs lie beside one another (q, k and v).
    """

    modules: Mapping[str, tuple[str, ...]]
    prefixes: tuple[str, ...] = ("",)
    """What may stand before every name."""
    whole: tuple[str, ...] = ()
    """The modules whose names take no prefix."""
    buffers: str = r"(?!)"
    """A pattern of the names that are not weights."""

    def parts(self, name: str) -> tuple[str, ...]:
        """The family's names of one of the model's parameters."""
        module, _, leaf = name.rpartition(".")
        block = next((word for word in module.split(".") if word.isdecimal()), "")
        general = re.sub(r"^blocks\.\d+\.", "blocks.N.", module)
        names = self.modules.get(general, (general,))
        return tuple(re.sub(r"\bN\b", block, part) + (f".{leaf}" if leaf else "") for part in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint, opened: what it holds is known, and no weight has been read."""

    path: Path
    family: str
    """In words."""
    tensors: Tensors
    """Name in the file → tensor, in the file's order."""
    spelling: Spelling
    config: AndreaConfig | None
    """The shape that it states; None where it states none."""
    orientation: Orientation | None = None
    """Where the format or the user says it; None: what the shapes prove."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    untrained: str | None = None
    """The file's own words where it calls its weights an initialisation; None where it does not."""
    guess: str | None = None
    """What was assumed of it and nothing proves, in words."""
    notes: tuple[str, ...] = ()
    hint: Callable[[Checkpoint], str] | None = None
    """The way out where it does not fit."""
    hashed: Callable[[], str] | None = None
    """Its hash, where that is not its files'."""

    @property
    def bytes_by_default(self) -> bool:
        """Whether its tokens are taken to be bytes where nothing says what they are: those of ANDREA alone are."""
        return self.family == "andrea-export" or self.family.startswith("published")

    def sha256(self) -> str:
        """Of its file; of several, of their names and hashes."""
        if self.hashed is not None:
            return self.hashed()
        files = files_of(self.tensors.values())
        if files == (self.path,):
            return sha256_of(self.path)
        config = self.path / "config.json"
        names = sorted({*files, *([config] if config.is_file() else [])})
        lines = "".join(f"{sha256_of(file)}  {file.name}\n" for file in names)
        return hashlib.sha256(lines.encode()).hexdigest()

    def check(self, config: AndreaConfig) -> None:
        """Holds names, count, shapes, types and orientation against the model's, before memory is taken for weights.

        Raises: one CheckpointError that names everything missing, unexpected, misshapen or of another type.
        """
        orientation = self.orientation_in(config)
        wanted = dict(self._wanted(config, orientation))
        found = {name: tensor for name, tensor in self.tensors.items() if name in wanted}
        problems = [f"missing {name} {list(wanted[name])}" for name in wanted if name not in found]
        buffer = re.compile(self.spelling.buffers)
        problems += [f"unexpected {name}" for name in self.tensors if name not in wanted and not buffer.fullmatch(name)]
        problems += [
            f"{name} has shape {list(tensor.shape)}, expected {list(wanted[name])}"
            for name, tensor in found.items()
            if tensor.shape != wanted[name]
        ]
        problems += [
            f"{name} has type {tensor.dtype}, expected F32, F16, BF16 or F64"
            for name, tensor in found.items()
            if tensor.dtype not in FLOAT_TYPES
        ]
        if problems:
            hint = self.hint(self) if self.hint is not None else "see docs/guides/checkpoints.md for what can be read"
            raise CheckpointError(listed(f"checkpoint {self.path} does not fit", problems), hint=hint)

    def orientation_in(self, config: AndreaConfig) -> Orientation:
        """How its matrices are stored: as it or the user says, else as their shapes prove.

        One file has one orientation, so that its square matrices are stored as the others are.
        Raises: CheckpointError where no matrix has a shape that tells.
        """
        stated = self.orientation
        if stated is not None:
            return stated
        in_out, out_in = (dict(self._wanted(config, way)) for way in ("in-out", "out-in"))
        telling = [name for name in in_out if in_out[name] != out_in[name]]
        if not telling:
            raise CheckpointError(
                f"checkpoint {self.path}: every matrix is square, so no shape tells whether it is stored [in, out] or "
                "[out, in]",
                hint="say it: --orientation in-out, or out-in (nn.Linear's)",
            )
        found = [(name, self.tensors[name].shape) for name in telling if name in self.tensors]
        num_in_out = sum(in_out[name] == shape for name, shape in found)
        return "out-in" if sum(out_in[name] == shape for name, shape in found) > num_in_out else "in-out"

    def weights(self, config: AndreaConfig) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter once, under the model's name and in its orientation (``[in, out]``), in any float type."""
        import torch

        from andrea_model.model import parameter_shapes

        out_in = self.orientation_in(config) == "out-in"
        for name in parameter_shapes(config):
            parts = [self.tensors[part].read() for part in self.names_of(name)]
            turned = [part.T for part in parts] if out_in and _MATRIX.fullmatch(name) else parts
            yield name, turned[0] if len(turned) == 1 else torch.cat(turned, dim=-1)

    def names_of(self, name: str) -> tuple[str, ...]:
        """The names of a parameter in this file, its prefix included."""
        parts = self.spelling.parts(name)
        if parts[0].rpartition(".")[0] in self.spelling.whole:
            return parts
        for prefix in self.spelling.prefixes:
            if all(prefix + part in self.tensors for part in parts):
                return tuple(prefix + part for part in parts)
        return tuple(self.spelling.prefixes[0] + part for part in parts)

    def _wanted(self, config: AndreaConfig, orientation: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The names it must have, and their shapes."""
        from andrea_model.model import parameter_shapes

        for name, shape in parameter_shapes(config).items():
            parts = self.names_of(name)
            own = (*shape[:-1], shape[-1] // len(parts))
            for part in parts:
                yield part, own[::-1] if orientation == "out-in" and _MATRIX.fullmatch(name) else own


def has_names_of(spelling: Spelling, tensors: Mapping[str, StoredTensor]) -> bool:
    """Whether the embedding and the first block's matrices are there under this spelling."""
    needed = [part for name in ("token_embed.weight", "blocks.0.mlp.fc.weight") for part in spelling.parts(name)]
    return any(all(prefix + part in tensors for part in needed) for prefix in spelling.prefixes)


def described(orientation: Orientation) -> str:
    """``[in, out]`` or ``[out, in]``."""
    return _HOW[orientation]


def listed(head: str, problems: Sequence[str], limit: int = 24) -> str:
    """Every problem in one line, a very long list cut and counted."""
    shown = "; ".join(problems[:limit])
    more = f"; and {len(problems) - limit} more" if len(problems) > limit else ""
    return f"{head}, {len(problems)} problem{'s' if len(problems) != 1 else ''}: {shown}{more}"
