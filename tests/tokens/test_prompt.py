"""What can be generated from: every problem of a request is named at once; the context may be filled, not passed."""

from __future__ import annotations

import pytest

from andrea_export.core.errors import UsageError
from andrea_export.tokens.tokenizer import check_generation, check_prompt, token_ids
from andrea_model import PRESETS

TINY = PRESETS["andrea-tiny"]


@pytest.mark.parametrize(
    ("prompt", "number", "text"),
    [
        ((), 1, "the prompt is empty"),
        ((321,), 1, "token id 321 is outside the vocabulary, expected 0 to 320"),
        ((-1, 0), 1, "token id -1 is outside"),
        ((0,), 0, "0 new tokens asked for"),
        ((0,), 1024, "are 1025 positions, and the model has 1024"),
        ((999,), 0, "outside the vocabulary.*; 0 new tokens"),
    ],
)
def test_what_cannot_be_generated(prompt: tuple[int, ...], number: int, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        check_generation(TINY, prompt, number)


def test_the_largest_request_is_allowed() -> None:
    check_generation(TINY, (0,) * 1023, 1)
    check_generation(TINY, (320,), 1023)


def test_a_prompt_alone_may_fill_the_context() -> None:
    check_prompt(TINY, (320,) * 1024)
    with pytest.raises(UsageError, match=r"token id 321, .* is outside .*; the prompt has 1025 tokens, .* has 1024"):
        check_prompt(TINY, (321,) * 1025)


def test_token_ids_are_integers_of_any_kind() -> None:
    assert token_ids(iter((1, True))) == [1, 1]
    with pytest.raises(UsageError, match="the prompt is not a sequence of token ids: str 'abc'"):
        token_ids("abc")  # type: ignore[arg-type]
