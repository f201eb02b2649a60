"""Engines of every variant of the architecture: their graphs pass the proof, and the builder takes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from andrea_export.compare.inputs import Inputs, built_in_tokens, seeded_cases
from andrea_export.compare.sources.torch_source import TorchSource
from andrea_export.core.precision import PRECISIONS, EnginePrecision
from andrea_export.core.profile import Profile, ShapeRange
from andrea_export.core.progress import Silent
from andrea_export.judge.verdicts import Terms
from andrea_export.operators.build import build_plugin_library
from andrea_export.targets.tensorrt.backend import EngineBackend
from andrea_export.targets.tensorrt.facts import EngineRequest
from andrea_export.targets.tensorrt.source import mixed_source
from andrea_export.validation.comparison import diff
from andrea_export.weights.load import LoadedModel


def test_the_graph_of_an_fp16_engine_passes_the_proof(variant: LoadedModel, variant_onnx: Path, tmp_path: Path) -> None:
    source = mixed_source(variant_onnx, variant.config, variant.origin, PRECISIONS["fp16"], folder=tmp_path)
    reference = TorchSource(variant.model, variant.origin, precision="fp64", provenance={})
    given = Inputs(cases=seeded_cases(variant.config), text=built_in_tokens(variant.config), source="seed 0")
    report = diff(reference, [source], given, Terms(), progress=Silent())
    assert report.verdict == "pass", [candidate.reason for candidate in report.candidates]


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_the_builder_takes_it_with_the_plugin(
    variant: LoadedModel, variant_onnx: Path, cache_dir: Path, tmp_path: Path, precision: EnginePrecision
) -> None:
    backend = EngineBackend("tensorrt-rtx")
    availability = backend.can_build()
    if not availability.available:
        pytest.skip(f"tensorrt-rtx: {availability.reason}")
    profile = Profile(sequence=ShapeRange(min=1, opt=16, max=64), past=ShapeRange(min=0, opt=16, max=96))
    facts = backend.build(
        EngineRequest(
            model=variant_onnx,
            config=variant.config,
            target="tensorrt-rtx",
            precision=precision,
            profile=profile,
            tf32=False,
            plugin_library=build_plugin_library(cache_dir).library,
            timeout_s=300,
            output=tmp_path / "engine.plan",
        ),
        Silent(),
    )
    assert facts.num_plugin_layers == facts.num_gelu_nodes == variant.config.n_layer
    assert facts.plugin_embedded and facts.engine_bytes == (tmp_path / "engine.plan").stat().st_size
