"""Rows of a batch: each says what it says alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.generating import PRECISIONS, PROMPT, opened


@pytest.mark.parametrize("precision", PRECISIONS)
def test_rows_of_a_batch_say_what_they_say_alone(ort_bundle: Path, precision: str) -> None:
    prompts = [PROMPT, PROMPT[:3], tuple(range(100, 240)), (7,)]
    with opened(ort_bundle, precision) as model:
        rows = list(zip(*model.generate_batch(prompts, max_new_tokens=30), strict=True))
        alone = [tuple(model.generate(prompt, max_new_tokens=30)) for prompt in prompts]
    assert rows == alone


def test_rows_of_a_padded_batch_say_what_they_say_alone(built_bundle: Path) -> None:
    prompts = [PROMPT, PROMPT[:3], tuple(range(100, 140))]
    with opened(built_bundle) as model:
        rows = list(zip(*model.generate_batch(prompts, max_new_tokens=20), strict=True))
        assert rows == [tuple(model.generate(prompt, max_new_tokens=20)) for prompt in prompts]
