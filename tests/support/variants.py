"""Small models of every variant of the architecture: each switch alone, and all together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from andrea_export.graph.canonical.export import export_canonical
from andrea_export.weights.load import LoadedModel, load_model, save_checkpoint
from andrea_model.config import AndreaConfig
from andrea_model.model import Andrea, build_model
from support.made_once import MadeOnce
from support.model_traits import with_every_parameter_at_work
from support.small_model import CONFIG

VARIANTS: dict[str, AndreaConfig] = {
    "own-head": replace(CONFIG, tied_head=False),
    "no-biases": replace(CONFIG, bias=False),
    "plain-norms": replace(CONFIG, norm_parameters=False),
    "published": replace(CONFIG, tied_head=False, bias=False, norm_parameters=False),
}


def variant_model(config: AndreaConfig) -> Andrea:
    """A model in which no bias is zero, no gain is one, and every matrix matters."""
    return with_every_parameter_at_work(build_model(config, seed=1))


@pytest.fixture(scope="session", params=VARIANTS)
def variant_checkpoint(request: pytest.FixtureRequest, made_once: MadeOnce) -> Path:
    """A checkpoint of each."""

    def make(folder: Path) -> Path:
        path = folder / f"{request.param}.safetensors"
        save_checkpoint(variant_model(VARIANTS[request.param]), path)
        return path

    return made_once(f"variant-{request.param}", make)


@pytest.fixture(scope="session")
def variant(variant_checkpoint: Path) -> LoadedModel:
    """The model in it."""
    return load_model(preset=None, checkpoint=variant_checkpoint, seed=0)


@pytest.fixture(scope="session")
def variant_onnx(variant: LoadedModel, variant_checkpoint: Path, made_once: MadeOnce) -> Path:
    """Its ONNX file. Read only."""
    return made_once(f"variant-{variant_checkpoint.stem}-onnx", lambda folder: export_canonical(variant, folder))
