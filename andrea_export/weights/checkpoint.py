"""Weights in: safetensors files, read strictly, and the seeded initialisation where there is none.

Owns what a checkpoint must hold, and where a model's weights came from; knows nothing of ONNX.
"""

from __future__ import annotations

import functools
import hashlib
import json
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from andrea_export.core.errors import CheckpointError, UsageError
from andrea_model.config import PRESETS, AndreaConfig

if TYPE_CHECKING:
    from andrea_model.model import Andrea

DEFAULT_PRESET = "andrea-120m"
CONFIG_KEY = "andrea.config"  # the metadata key under which a checkpoint may carry its own shape, and a graph does
WEIGHTS_KEY = "andrea.weights"  # the one under which they say where the weights came from
_UNTRAINED = "untrained weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsOrigin:
    """Where weights came from: a checkpoint's name and sha256, or the seed of an untrained initialisation."""

    preset: str | None
    checkpoint: str | None = None
    checkpoint_sha256: str | None = None
    seed: int | None = None
    untrained: bool = False
    """The checkpoint itself says that its weights are an initialisation, saved."""

    @property
    def trained(self) -> bool:
        """Whether the weights came from a checkpoint that does not say they are untrained."""
        return self.checkpoint_sha256 is not None and not self.untrained

    def __str__(self) -> str:
        if self.checkpoint_sha256 is None:
            return f"{_UNTRAINED} (GPT-2 initialisation, seed {self.seed})"
        file = f"{self.checkpoint} (sha256 {str(self.checkpoint_sha256)[:12]})"
        return f"{_UNTRAINED}, saved in {file}" if self.untrained else file


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A reference model with its weights and their origin."""

    model: Andrea
    config: AndreaConfig
    origin: WeightsOrigin


def config_from_preset(preset: str) -> AndreaConfig:
    """The shape of a preset. Raises UsageError naming the presets there are."""
    try:
        return PRESETS[preset]
    except KeyError:
        raise UsageError(f"unknown preset '{preset}'", hint=f"presets: {', '.join(PRESETS)}") from None


def load_model(*, preset: str | None, checkpoint: Path | None, seed: int) -> LoadedModel:
    """The reference model, in eval mode, fp32 on the CPU.

    With a checkpoint: its weights, under the preset's shape or else its own metadata's. Without: the seeded
    initialisation. Raises: UsageError (unknown preset), CheckpointError (everything wrong with the file, at once).
    """
    from andrea_model.model import build_model, parameter_shapes

    config, origin = resolve_origin(preset=preset, checkpoint=checkpoint, seed=seed)
    if checkpoint is None:
        return LoadedModel(model=build_model(config, seed=seed), config=config, origin=origin)
    header = read_header(checkpoint)
    _check_names_and_shapes(parameter_shapes(config), header, checkpoint)  # before memory is taken for them
    model = build_model(config)
    _load_finite(model, checkpoint)
    if resolve_origin(preset=preset, checkpoint=checkpoint, seed=seed) != (config, origin):
        raise CheckpointError(
            f"checkpoint {checkpoint} changed while it was being read", hint="copy it away from the run that writes it"
        )
    return LoadedModel(model=model, config=config, origin=origin)


def resolve_origin(*, preset: str | None, checkpoint: Path | None, seed: int) -> tuple[AndreaConfig, WeightsOrigin]:
    """The shape and the origin ``load_model`` would give, without loading a weight (and without torch).

    Raises: UsageError (unknown preset), CheckpointError (no whole safetensors file, or of another model).
    """
    if checkpoint is None:
        name = preset or DEFAULT_PRESET
        return config_from_preset(name), WeightsOrigin(preset=name, seed=seed)
    header = read_header(checkpoint)
    config, own_preset = _config_of(header, preset, checkpoint)
    return config, WeightsOrigin(
        preset=own_preset,
        # A file name that is no UTF-8 goes into ONNX metadata and JSON, which are.
        checkpoint=checkpoint.name.encode("utf-8", "backslashreplace").decode("utf-8"),
        checkpoint_sha256=sha256_of(checkpoint),
        untrained=says_untrained(header.metadata),
    )


def save_checkpoint(model: Andrea, path: Path, *, origin: WeightsOrigin | None = None) -> None:
    """Writes the model's weights and its configuration as safetensors; with ``origin`` (of an untrained model), also
    where they came from, so that what is built from the file is not called trained."""
    from safetensors.torch import save_file

    tensors = {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}
    metadata = {CONFIG_KEY: json.dumps(asdict(model.config))}
    if origin is not None:
        metadata[WEIGHTS_KEY] = str(origin)
    save_file(tensors, path, metadata=metadata)


def says_untrained(metadata: dict[str, str]) -> bool:
    """Whether a checkpoint's own metadata says that its weights are an initialisation."""
    return metadata.get(WEIGHTS_KEY, "").startswith(_UNTRAINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointHeader:
    """What a safetensors file says it holds: name → (type, shape), and its metadata."""

    tensors: dict[str, tuple[str, tuple[int, ...]]]
    metadata: dict[str, str]


def read_header(path: Path) -> CheckpointHeader:
    """The header of a safetensors file, its length checked against the file's.

    Raises: CheckpointError for a file that is missing, empty, truncated, or not safetensors.
    Source: https://github.com/huggingface/safetensors#format (u64 header length, JSON, data).
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise CheckpointError(f"checkpoint {path}: {'is a folder' if path.is_dir() else 'no such file'}")
    num_bytes = path.stat().st_size
    if num_bytes == 0:
        raise CheckpointError(f"checkpoint {path} is empty")
    try:
        with safe_open(path, framework="np") as file:
            tensors = {}
            for name in file.keys():  # noqa: SIM118 (safe_open is no mapping)
                view = file.get_slice(name)
                tensors[name] = (view.get_dtype(), tuple(view.get_shape()))
            return CheckpointHeader(tensors=tensors, metadata=file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"checkpoint {path} is not a whole safetensors file ({num_bytes:,} bytes): {error}",
            hint=_foreign_hint(path),
        ) from None


def config_from_metadata(metadata: dict[str, str], where: Path) -> AndreaConfig | None:
    """The shape a checkpoint carries in its metadata, if it carries one. Raises CheckpointError if it is not one."""
    text = metadata.get(CONFIG_KEY)
    if text is None:
        return None
    try:
        return AndreaConfig(**json.loads(text))
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"checkpoint {where}: metadata '{CONFIG_KEY}' is no configuration: {error}") from None


def published_header(path: Path) -> tuple[int, int] | None:
    """(step, n_params) if the file has the published ANDREA checkpoint's layout, else None.

    Source: the model card: int32 step, int32 n_params, then 3 × n_params float32 (weights, Adam m, Adam v).
    """
    with path.open("rb") as file:
        head = file.read(8)
    if len(head) < 8:
        return None
    step, num_params = struct.unpack("<ii", head)
    return (step, num_params) if num_params > 0 and path.stat().st_size == 8 + 12 * num_params else None


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hex. A file that has not changed since the last call is not read again."""
    return _sha256_of(path.resolve(), *file_identity(path))


def file_identity(path: Path) -> tuple[int, ...]:
    """What changes when a file is replaced or written to. Raises: OSError if it is not there."""
    facts = path.stat()
    return (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


@functools.lru_cache(maxsize=32)
def _sha256_of(path: Path, *_identity: int) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def _foreign_hint(path: Path) -> str:
    if published := published_header(path):
        return (
            f"this is the published training checkpoint (step {published[0]}, {published[1]:,} parameters); its card "
            "does not state the order of its tensors, so convert it to safetensors with the training engine"
        )
    return "write it with safetensors.torch.save_file, or andrea_export.weights.checkpoint.save_checkpoint"


def _config_of(header: CheckpointHeader, preset: str | None, path: Path) -> tuple[AndreaConfig, str | None]:
    own = config_from_metadata(header.metadata, path)
    if preset is None and own is not None:
        return own, next((name for name, config in PRESETS.items() if config == own), None)
    name = preset or DEFAULT_PRESET
    config = config_from_preset(name)
    if own is not None and own != config:
        different = ", ".join(
            f"{key} {value} (preset {name}: {asdict(config)[key]})"
            for key, value in asdict(own).items()
            if value != asdict(config)[key]
        )
        raise CheckpointError(f"checkpoint {path} says it is another model: {different}", hint="leave out --preset")
    return config, name


def _check_names_and_shapes(wanted: dict[str, tuple[int, ...]], header: CheckpointHeader, path: Path) -> None:
    """Raises one CheckpointError that names everything missing, unexpected, misshapen or of another type."""
    problems = [f"missing {name} {list(wanted[name])}" for name in wanted if name not in header.tensors]
    problems += [f"unexpected {name}" for name in header.tensors if name not in wanted]
    problems += [
        f"{name} has shape {list(shape)}, expected {list(wanted[name])}"
        for name, (_, shape) in header.tensors.items()
        if name in wanted and shape != wanted[name]
    ]
    problems += [
        f"{name} has type {dtype}, expected F32, F16 or BF16"
        for name, (dtype, _) in header.tensors.items()
        if name in wanted and dtype not in ("F32", "F16", "BF16")
    ]
    if problems:
        raise CheckpointError(_listed(f"checkpoint {path} does not fit", problems), hint=_shape_hint(header))


def _load_finite(model: Andrea, path: Path) -> None:
    """Copies every weight. Raises one CheckpointError that names every parameter with NaN or Inf in it."""
    import torch
    from safetensors import safe_open

    broken: list[str] = []
    with safe_open(path, framework="pt") as file:
        for name, parameter in model.named_parameters():
            parameter.copy_(file.get_tensor(name))
            num_bad = int(torch.numel(parameter) - torch.isfinite(parameter).sum())
            if num_bad:
                broken.append(f"{name} ({num_bad:,} of {parameter.numel():,} values)")
    if broken:
        raise CheckpointError(
            _listed(f"checkpoint {path} has NaN or Inf", broken),
            hint="the training run diverged; take an earlier checkpoint",
        )


def _listed(head: str, problems: list[str], limit: int = 24) -> str:
    shown = "; ".join(problems[:limit])
    more = f"; and {len(problems) - limit} more" if len(problems) > limit else ""
    return f"{head}, {len(problems)} problem{'s' if len(problems) != 1 else ''}: {shown}{more}"


def _shape_hint(header: CheckpointHeader) -> str:
    """Which preset the file's own embedding suggests."""
    shapes: dict[str, Any] = {name: shape for name, (_, shape) in header.tensors.items()}
    fits = [
        name
        for name, config in PRESETS.items()
        if shapes.get("token_embed.weight") == (config.vocab_size, config.d_model)
    ]
    return (
        f"its token_embed.weight is that of {fits[0]}: use --preset {fits[0]}"
        if fits
        else "see model/README.md for the names"
    )
