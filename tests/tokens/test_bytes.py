"""Text as bytes: whole characters only, marks for tokens that are not bytes."""

from __future__ import annotations

import pytest

from andrea_export.tokens.tokenizer import BYTES


@pytest.mark.parametrize("text", ["plain", "héllo", "日本", "🙂", "a\u0301"])
def test_characters_come_whole(text: str) -> None:
    stream = BYTES.stream()
    pieces = [stream.feed(token) for token in BYTES.encode(text)]
    assert "".join(pieces) + stream.finish() == text
    assert all("�" not in piece for piece in pieces)


def test_half_a_character_is_held_back_and_then_marked() -> None:
    stream = BYTES.stream()
    first, second, third, _ = "🙂".encode()
    assert [stream.feed(first), stream.feed(second), stream.feed(third)] == ["", "", ""]
    assert stream.finish() == "�"
    assert stream.feed(65) == "A"


def test_a_broken_byte_does_not_swallow_what_follows() -> None:
    stream = BYTES.stream()
    assert stream.feed(0xC3) + stream.feed(65) == "�A"


def test_a_token_that_is_not_a_byte_is_shown_by_its_id() -> None:
    stream = BYTES.stream()
    assert stream.feed(0xC3) + stream.feed(300) + stream.feed(66) == "�⟨300⟩B"


def test_a_files_content_is_spelled_whatever_it_holds() -> None:
    content = bytes(range(256))
    assert BYTES.encode_bytes(content) == tuple(range(256))
    assert max(BYTES.encode_bytes(content)) < BYTES.vocab_size
    with pytest.raises(UnicodeEncodeError):
        BYTES.encode("\udc80")
