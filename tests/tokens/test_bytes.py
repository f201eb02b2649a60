"""Text as bytes: whole characters only, marks for what is no byte."""

from __future__ import annotations

import pytest

from andrea_export.core.errors import UsageError
from andrea_export.tokens.bytes import TextStream, tokens_from_prompt


@pytest.mark.parametrize("text", ["plain", "héllo", "日本", "🙂", "a\u0301"])
def test_characters_come_whole(text: str) -> None:
    stream = TextStream()
    pieces = [stream.feed(token) for token in tokens_from_prompt(text, 257)]
    assert "".join(pieces) + stream.finish() == text
    assert all("�" not in piece for piece in pieces)


def test_half_a_character_is_held_back_and_then_marked() -> None:
    stream = TextStream()
    first, second, third, _ = "🙂".encode()
    assert [stream.feed(first), stream.feed(second), stream.feed(third)] == ["", "", ""]
    assert stream.finish() == "�"
    assert stream.feed(65) == "A"


def test_a_broken_byte_does_not_swallow_what_follows() -> None:
    stream = TextStream()
    assert stream.feed(0xC3) + stream.feed(65) == "�A"


def test_a_token_that_is_no_byte_is_shown_by_its_id() -> None:
    stream = TextStream()
    assert stream.feed(0xC3) + stream.feed(300) + stream.feed(66) == "�⟨300⟩B"


@pytest.mark.parametrize(("text", "vocabulary", "problem"), [("", 257, "is empty"), ("a", 255, "at least 256"),
                                                            ("\udc80", 257, "not valid text")])  # fmt: skip
def test_prompts_that_are_none(text: str, vocabulary: int, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        tokens_from_prompt(text, vocabulary)
