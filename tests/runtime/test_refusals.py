"""What cannot be generated is refused before anything runs."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from andrea_export.core.errors import (
    UsageError,
)
from andrea_export.runtime import Sampling
from support.generating import PROMPT, opened


@pytest.mark.parametrize(
    ("prompt", "number", "sampling", "text"),
    [
        ((), 1, Sampling(), "the prompt is empty"),
        ((321,), 1, Sampling(), "token id 321 is outside"),
        ((-1,), 1, Sampling(), "token id -1 is outside"),
        ((1,), 0, Sampling(), "0 new tokens asked for"),
        ((1,), -3, Sampling(), "-3 new tokens asked for"),
        ((1,), 1024, Sampling(), "1025 positions"),
        ((1,), 1, Sampling(temperature=0.0), "temperature is 0"),
        ((1,), 1, Sampling(temperature=-1.0), "temperature is -1"),
        ((1,), 1, Sampling(temperature=float("nan")), "temperature is nan"),
        ((1,), 1, Sampling(temperature=float("inf")), "temperature is inf"),
        ((1,), 1, Sampling(temperature=1.0, top_p=0.0), "top-p is 0"),
        ((1,), 1, Sampling(temperature=1.0, top_p=1.5), r"top-p is 1\.5"),
        ((1,), 1, Sampling(temperature=1.0, top_p=float("nan")), "top-p is nan"),
        ((1,), 1, Sampling(temperature=1.0, top_k=0), "top-k is 0"),
        ((1,), 1, Sampling(top_k=5), "need a temperature"),
        ((1,), 1, Sampling(seed=-1), "seed is -1"),
        ((1,), 1, Sampling(stop=(321,)), "stop token 321"),
        ((1,), 1, Sampling(temperature="warm"), "temperature is 'warm', expected a number"),
        ((1,), 1, Sampling(temperature=True), "temperature is 'True', expected a number"),
        ((1,), 1, Sampling(temperature=10**400), "temperature is '10{39}', expected a number"),
        ((1,), 1, Sampling(temperature=Fraction(-1, 2)), r"temperature is -0\.5, expected a number above 0"),
        ((1,), 1, Sampling(temperature=1.0, top_k=2.5), r"top-k is 2\.5, expected a whole number"),
        ((1,), 1, Sampling(seed=None), "seed is None, expected a whole number"),
        ((1,), 1, Sampling(stop=7), "stop is 7, expected a tuple of token ids"),
        ((1,), 1, Sampling(stop=b"\n"), r"stop is b'\\n', expected a tuple of token ids"),
        ((1,), 1, Sampling(stop=("a",)), "a stop token is 'a', expected a whole number"),
        ((1,), 1, "greedy", "sampling is 'greedy', expected"),
        ((1,), 1, {}, "sampling is {}, expected"),
        ((1,), 2.0, Sampling(), r"max_new_tokens is 2\.0, expected a whole number"),
        ((1,), True, Sampling(), "max_new_tokens is True, expected a whole number"),
    ],
)
def test_what_cannot_be_generated(
    ort_bundle: Path, prompt: tuple[int, ...], number: int, sampling: Sampling, text: str
) -> None:
    with opened(ort_bundle) as model, pytest.raises(UsageError, match=text):
        model.generate(prompt, max_new_tokens=number, sampling=sampling)


@pytest.mark.parametrize("prompt", ["abc", [1.5], [[1]], None, np.array([[1, 2]])])
def test_what_is_not_a_prompt(ort_bundle: Path, prompt: Any) -> None:
    with opened(ort_bundle) as model:
        for refused in (
            lambda: model.generate(prompt, max_new_tokens=1),
            lambda: model.prefill([prompt]),
            lambda: model.generate_batch([PROMPT, prompt], max_new_tokens=1),
        ):
            with pytest.raises(UsageError, match="not a sequence of token ids"):
                refused()
        with pytest.raises(UsageError, match="expected a whole number"):
            model.generate(PROMPT, max_new_tokens=2.5)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="no prompt was given"):
            model.prefill([])
        with pytest.raises(UsageError, match=f"the prompt has {model.config.n_ctx + 1} tokens"):
            model.prefill([[1] * (model.config.n_ctx + 1)])


@pytest.mark.parametrize("prompts", [None, 5])
def test_what_are_not_prompts(ort_bundle: Path, prompts: Any) -> None:
    with opened(ort_bundle) as model, pytest.raises(UsageError, match=f"the prompts are {prompts}, expected a list"):
        model.generate_batch(prompts, max_new_tokens=1)


def test_no_prompt_at_all(ort_bundle: Path) -> None:
    with opened(ort_bundle) as model, pytest.raises(UsageError, match="no prompt"):
        model.generate_batch([], max_new_tokens=1)


def test_a_closed_model_says_so(ort_bundle: Path) -> None:
    model = opened(ort_bundle)
    model.close()
    model.close()
    with pytest.raises(UsageError, match="the model is closed"):
        list(model.generate((1,), max_new_tokens=1))
