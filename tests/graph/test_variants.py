"""Variants of the architecture as ONNX files: they say which they are, compute what torch does, and pass the proof."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import torch

from andrea_export.compare.inputs import Inputs, built_in_tokens, seeded_cases
from andrea_export.compare.sources.onnx_source import onnx_source
from andrea_export.compare.sources.torch_source import TorchSource
from andrea_export.core.names import CONFIG_KEY, layer_names
from andrea_export.core.progress import Silent
from andrea_export.graph.canonical.metadata import read_canonical_info
from andrea_export.graph.parameters import hashes_from_model, model_from_onnx, problems_of_parameters
from andrea_export.judge.verdicts import Terms
from andrea_export.sessions.base import zero_cache
from andrea_export.sessions.onnxruntime import OnnxSession
from andrea_export.validation.comparison import diff
from andrea_export.weights.load import LoadedModel
from andrea_model.model import parameter_shapes

BOUND = 1e-4  # as tests/graph/test_canonical.py derives it


def test_the_file_passes_the_checker_and_says_which_variant_it_is(variant: LoadedModel, variant_onnx: Path) -> None:
    onnx.checker.check_model(variant_onnx, full_check=True)
    info = read_canonical_info(variant_onnx)
    assert info is not None and info.config == variant.config
    stated = {entry.key: entry.value for entry in onnx.load(variant_onnx, load_external_data=False).metadata_props}
    assert json.loads(stated[CONFIG_KEY]) == variant.config.stated()


def test_its_weights_are_the_models_bit_for_bit(variant: LoadedModel, variant_onnx: Path) -> None:
    assert problems_of_parameters(variant_onnx, hashes_from_model(variant.model), variant.config) == {}
    again = dict(model_from_onnx(variant_onnx, variant.config).named_parameters())
    assert {name: tuple(parameter.shape) for name, parameter in again.items()} == parameter_shapes(variant.config)


def test_every_layer_keeps_its_name(variant: LoadedModel, variant_onnx: Path) -> None:
    graph = onnx.load(variant_onnx, load_external_data=False).graph
    values = {name for node in graph.node for name in node.output}
    assert set(layer_names(variant.config)) <= values


def test_onnxruntime_computes_what_torch_does(variant: LoadedModel, variant_onnx: Path) -> None:
    ids = np.random.default_rng(0).integers(0, variant.config.vocab_size, (2, 24))
    with torch.inference_mode():
        expected = variant.model(torch.from_numpy(ids))[0].numpy()
    positions = np.broadcast_to(np.arange(24), ids.shape).copy()
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": positions}
    with OnnxSession(variant_onnx) as session:
        found = session.run({**feeds, **zero_cache(variant.config, batch=2, past=0, dtype=np.dtype(np.float32))})
    assert np.abs(found["logits"] - expected).max() <= BOUND


def test_the_proof_passes_at_every_layer(variant: LoadedModel, variant_onnx: Path) -> None:
    reference = TorchSource(variant.model, variant.origin, precision="fp64", provenance={})
    given = Inputs(cases=seeded_cases(variant.config), text=built_in_tokens(variant.config), source="seed 0")
    report = diff(reference, [onnx_source(variant_onnx)], given, Terms(), progress=Silent())
    assert report.verdict == "pass"
    assert {row.name for row in report.layers} == set(layer_names(variant.config))
