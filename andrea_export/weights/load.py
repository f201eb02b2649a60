"""Weights in and out: a checkpoint, read strictly, or the seeded initialisation where there is none."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from andrea_export.core.errors import CheckpointError
from andrea_export.core.names import CONFIG_KEY, WEIGHTS_KEY
from andrea_export.weights.origin import DEFAULT_PRESET, WeightsOrigin, config_from_preset, preset_of
from andrea_export.weights.readers import Checkpoint, Reading, open_checkpoint
from andrea_export.weights.readers.base import listed
from andrea_export.weights.readers.stored import num_not_finite
from andrea_model.config import AndreaConfig

if TYPE_CHECKING:
    import torch

    from andrea_model.model import Andrea


# Names and shapes were right when the header was checked, so either the file or its reader is at fault.
_CHANGED = "unlike what its header said: the file changed, or its reader is wrong"
_COPY = "copy it away from the run that writes it"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A reference model with its weights and their origin."""

    model: Andrea
    config: AndreaConfig
    origin: WeightsOrigin


def load_model(
    *, preset: str | None, checkpoint: Path | None, seed: int, reading: Reading | None = None
) -> LoadedModel:
    """The reference model, in eval mode, fp32 on the CPU.

    With a checkpoint: its weights, in the shape that ``reading`` or the preset gives, or else its own. Without: the
    seeded initialisation. Raises: UsageError (unknown preset), CheckpointError (everything wrong with the file, at
    once).
    """
    from andrea_model.model import build_model

    config, origin = resolve_origin(preset=preset, checkpoint=checkpoint, seed=seed, reading=reading)
    if checkpoint is None:
        return LoadedModel(model=build_model(config, seed=seed), config=config, origin=origin)
    opened = open_checkpoint(checkpoint, reading)
    opened.check(config)  # before memory is taken for the weights
    model = build_model(config)
    _copy_finite(model, opened.weights(config), checkpoint)
    if resolve_origin(preset=preset, checkpoint=checkpoint, seed=seed, reading=reading) != (config, origin):
        raise CheckpointError(f"checkpoint {checkpoint} changed while it was being read", hint=_COPY)
    return LoadedModel(model=model, config=config, origin=origin)


def resolve_origin(
    *, preset: str | None, checkpoint: Path | None, seed: int, reading: Reading | None = None
) -> tuple[AndreaConfig, WeightsOrigin]:
    """The shape and the origin ``load_model`` would give, without loading a weight.

    Raises: UsageError (unknown preset), CheckpointError (a damaged file, or one of another model).
    """
    given = reading.config if reading is not None else None
    if checkpoint is None:
        if given is not None:
            return given, WeightsOrigin(preset=preset_of(given), seed=seed)
        name = preset or DEFAULT_PRESET
        return config_from_preset(name), WeightsOrigin(preset=name, seed=seed)
    opened = open_checkpoint(checkpoint, reading)
    config, own_preset = _config_of(opened, preset, given)
    return config, WeightsOrigin(
        preset=own_preset,
        # A file name that is not UTF-8 goes into ONNX metadata and JSON, which are.
        checkpoint=_name_of(checkpoint).encode("utf-8", "backslashreplace").decode("utf-8"),
        checkpoint_sha256=opened.sha256(),
        untrained=opened.untrained is not None,
        guess=opened.guess,
    )


def _name_of(checkpoint: Path) -> str:
    """Its own name, also where it was given as ``.``; a link keeps its name, for the files of a cache have none."""
    return checkpoint.name if checkpoint.name not in ("", "..") else checkpoint.resolve().name


def save_checkpoint(model: Andrea, path: Path, *, origin: WeightsOrigin | None = None) -> None:
    """Writes the model's weights and its configuration as safetensors; with ``origin`` (of an untrained model), also
    where they came from, so that what is built from the file is not called trained."""
    from safetensors.torch import save_file

    tensors = {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}
    metadata = {CONFIG_KEY: json.dumps(model.config.stated())}
    if origin is not None:
        metadata[WEIGHTS_KEY] = str(origin)
    save_file(tensors, path, metadata=metadata)


def _config_of(opened: Checkpoint, preset: str | None, given: AndreaConfig | None) -> tuple[AndreaConfig, str | None]:
    """The shape to load a checkpoint in, and its preset. Raises CheckpointError where it states another one."""
    own = opened.config
    if preset is None and given is None and own is not None:
        return own, preset_of(own)
    if preset is None and given is None and opened.family != "andrea-export":
        raise CheckpointError(
            f"checkpoint {opened.path} ({opened.family}) does not state its shape",
            hint="name it: --config FILE, or --preset NAME",
        )
    name = preset or DEFAULT_PRESET
    config = given or config_from_preset(name)
    if own is not None and own != config:
        said = "configuration given" if given is not None else f"preset {name}"
        wanted = asdict(config)
        found = {key: value for key, value in asdict(own).items() if value != wanted[key]}
        different = ", ".join(f"{key} {value} ({said}: {wanted[key]})" for key, value in found.items())
        raise CheckpointError(
            f"checkpoint {opened.path} says it is another model: {different}",
            hint="leave out --preset" if given is None else "leave out the configuration: it states its own",
        )
    return config, preset_of(config)


def _copy_finite(model: Andrea, tensors: Iterable[tuple[str, torch.Tensor]], path: Path) -> None:
    """Copies every weight. Raises one CheckpointError that names every parameter with NaN or Inf in it."""

    missing = dict(model.named_parameters())
    broken: list[str] = []
    for name, tensor in tensors:
        parameter = missing.pop(name, None)
        if parameter is None or tensor.shape != parameter.shape:  # copy_ would broadcast it
            raise CheckpointError(f"checkpoint {path}: {name} has shape {list(tensor.shape)}, {_CHANGED}", hint=_COPY)
        parameter.copy_(tensor)
        if num_bad := num_not_finite(parameter):
            broken.append(f"{name} ({num_bad:,} of {parameter.numel():,} values)")
    if missing:
        raise CheckpointError(f"checkpoint {path}: {', '.join(missing)} was not read, {_CHANGED}", hint=_COPY)
    if broken:
        raise CheckpointError(
            listed(f"checkpoint {path} has NaN or Inf", broken),
            hint="the training run diverged; take an earlier checkpoint",
        )
