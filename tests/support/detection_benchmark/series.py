"""The models of the benchmark, with the faults that are planted in each and the sound runs it gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from andrea_export.weights.load import LoadedModel, load_model
from support.model_traits import with_outlier_channels
from support.paths import FIXTURES
from support.planted import SUBTLE, Planting, plantings

PARTS = ("faults", "subtle", "large", "sound")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One model with the faults that one part of the benchmark plants in it."""

    part: str
    name: str
    loaded: LoadedModel
    chosen: Sequence[Planting]
    group: int = 48
    """How many graphs are compared at once, over one run of the reference."""
    sound_every: int = 0
    """One in so many of the sound runs is made; 0 is none. 25 takes every second input, each under another setting."""

    @property
    def sound_part(self) -> str:
        """The part its sound runs belong to."""
        return "large" if self.part == "large" else "sound"


def all_series(*, quick: bool) -> Iterator[Series]:
    """Every model in turn; ``quick`` takes a tenth of the faults, and not the large model."""
    austen = load_model(preset=None, checkpoint=FIXTURES / "austen.safetensors", seed=0)
    ends = (0, austen.config.n_layer - 1)
    outliers = replace(austen, model=with_outlier_channels(austen.model))
    tiny = load_model(preset="andrea-tiny", checkpoint=None, seed=1)
    _fill_vectors(tiny)
    rare = 10 if quick else 1
    every = list(plantings(austen.config, ends))
    yield Series(part="faults", name="trained", loaded=austen, chosen=every[::rare], sound_every=1)
    yield Series(
        part="faults",
        name="trained, outliers",
        loaded=outliers,
        chosen=list(plantings(outliers.config, [2]))[:: 4 * rare],
        sound_every=25,
    )
    quarter = list(plantings(tiny.config, [0]))[1 :: 4 * rare]
    yield Series(part="faults", name="andrea-tiny", loaded=tiny, chosen=quarter, sound_every=25)
    subtle = list(plantings(austen.config, ends, SUBTLE))[::rare]
    yield Series(part="subtle", name="trained, subtle", loaded=austen, chosen=subtle)
    if quick:
        return
    large = load_model(preset="andrea-120m", checkpoint=None, seed=1)
    _fill_vectors(large)
    large = replace(large, model=with_outlier_channels(large.model))
    sample = list(plantings(large.config, [5]))[::11]
    yield Series(
        part="large",
        name="andrea-120m, outliers",
        loaded=large,
        chosen=sample,
        group=4,
        sound_every=156,  # two
    )


def _fill_vectors(loaded: LoadedModel) -> None:
    """Gives biases and gains values that matter: GPT-2's initial ones are zeros and ones, where faults would hide."""
    generator = torch.Generator().manual_seed(2)
    for parameter in loaded.model.parameters():
        if parameter.ndim == 1:
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
