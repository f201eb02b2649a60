"""Fixtures of the diff engine's tests: a model that is compared in a second, as checkpoint, ONNX file and report."""

from __future__ import annotations

from pathlib import Path

import pytest

from andrea_export.compare.inputs import Inputs, built_in_tokens, seeded_cases, text_tokens
from andrea_export.compare.sources.onnx_source import OnnxSource, onnx_source
from andrea_export.compare.sources.torch_source import TorchSource
from andrea_export.core.progress import Silent
from andrea_export.graph.canonical.export import export_canonical
from andrea_export.judge.verdicts import Terms
from andrea_export.report.schema import Report
from andrea_export.validation.comparison import diff
from andrea_export.weights.load import LoadedModel, load_model, save_checkpoint
from andrea_model.config import AndreaConfig
from andrea_model.model import build_model
from support.made_once import MadeOnce
from support.model_traits import with_every_parameter_at_work
from support.paths import FIXTURES

CONFIG = AndreaConfig(d_model=32, n_head=2, n_layer=2, n_ctx=160, vocab_size=260, mlp_dim=64)


@pytest.fixture(scope="session")
def small_checkpoint(made_once: MadeOnce) -> Path:
    """A checkpoint in which no bias is zero, no gain is one, and a few gains are those of outlier channels."""
    return made_once("small", lambda folder: _small_checkpoint(folder / "small.safetensors"))


def _small_checkpoint(path: Path) -> Path:
    model = with_every_parameter_at_work(build_model(CONFIG, seed=1))
    dict(model.named_parameters())["blocks.0.ln_1.weight"][3] *= 30.0
    save_checkpoint(model, path)
    return path


@pytest.fixture(scope="session")
def small(small_checkpoint: Path) -> LoadedModel:
    """The model in it."""
    return load_model(preset=None, checkpoint=small_checkpoint, seed=0)


@pytest.fixture(scope="session")
def small_onnx(small: LoadedModel, made_once: MadeOnce) -> Path:
    """Its ONNX file. Read only."""
    return made_once("small-onnx", lambda folder: export_canonical(small, folder))


@pytest.fixture(scope="session")
def trained() -> LoadedModel:
    """The trained fixture: its perplexity means something, and its likeliest tokens lead as a trained model's do."""
    return load_model(preset=None, checkpoint=FIXTURES / "austen.safetensors", seed=0)


@pytest.fixture(scope="session")
def trained_onnx(trained: LoadedModel, made_once: MadeOnce) -> Path:
    """Its ONNX file. Read only."""
    return made_once("trained-onnx", lambda folder: export_canonical(trained, folder))


@pytest.fixture(scope="session")
def held_out(trained: LoadedModel) -> tuple[int, ...]:
    """Text it was not trained on: its context, and one token more."""
    return text_tokens(FIXTURES / "austen_held_out.txt", trained.config)


@pytest.fixture(scope="session")
def reference(small: LoadedModel) -> TorchSource:
    """Torch in fp64."""
    return TorchSource(small.model, small.origin, precision="fp64", provenance={})


@pytest.fixture(scope="session")
def inputs() -> Inputs:
    """The default cases, and the built-in text."""
    return Inputs(cases=seeded_cases(CONFIG), text=built_in_tokens(CONFIG), source="seed 0")


@pytest.fixture(scope="session")
def candidate(small_onnx: Path) -> OnnxSource:
    """The ONNX file on the CPU."""
    return onnx_source(small_onnx)


@pytest.fixture(scope="session")
def clean(reference: TorchSource, candidate: OnnxSource, inputs: Inputs) -> Report:
    """The report on the untouched file. Read only."""
    return diff(reference, [candidate], inputs, Terms(), progress=Silent())
