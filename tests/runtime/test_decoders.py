"""One suite for every provider that works here: step by step equals one full forward pass, alone and in a batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

import andrea_export
from andrea_export.core.errors import BackendUnavailable
from andrea_export.runtime import Model
from andrea_export.sessions.onnxruntime import PROVIDERS
from andrea_export.weights.load import LoadedModel

PROMPTS = [(5, 17, 42, 300, 8), (320, 1), (7,)]


@pytest.fixture(scope="module", params=[*((name, "canonical") for name in PROVIDERS), ("cpu", "cpu graphs")])
def model(request: pytest.FixtureRequest, built_bundle: Path, ort_bundle: Path) -> Iterator[Model]:
    """fp32 on every provider that can be opened; the CPU also with its own graphs."""
    provider, kind = request.param
    try:
        opened = andrea_export.load(
            ort_bundle if kind == "cpu graphs" else built_bundle, provider=provider, allow_cpu_nodes=True
        )
    except BackendUnavailable as error:
        pytest.skip(str(error))
    with opened:
        yield opened


def logits_after(loaded: LoadedModel, tokens: tuple[int, ...]) -> np.ndarray:
    with torch.inference_mode():
        array: np.ndarray = loaded.model(torch.tensor([list(tokens)]))[0][0, -1].numpy()
    return array


def test_every_step_equals_a_full_forward_pass(model: Model, tiny: LoadedModel) -> None:
    tokens = [[9, 10, 11], [12, 13, 14], [15, 16, 17]]
    with closing(model.decoder.begin(PROMPTS, 12)) as generation:
        found = [generation.logits_BV.copy(), *(generation.step(step).copy() for step in tokens)]
    for number, logits_BV in enumerate(found):
        for row, prompt in enumerate(PROMPTS):
            so_far = (*prompt, *(step[row] for step in tokens[:number]))
            # fp32 kernels of different providers differ in the order of their sums: 1e-4 of logits up to 4.
            assert np.abs(logits_BV[row] - logits_after(tiny, so_far)).max() < 1e-4


def test_a_new_generation_knows_nothing_of_the_last_one(model: Model, tiny: LoadedModel) -> None:
    for prompts in ([(1, 2, 3)] * 2, [(4, 5)]):
        with closing(model.decoder.begin(prompts, 5)) as generation:
            assert np.abs(generation.logits_BV - logits_after(tiny, prompts[0])).max() < 1e-4


def test_it_ran_where_it_was_asked_to(model: Model) -> None:
    assert model.name.startswith(f"onnxruntime-{model.provider} (")
