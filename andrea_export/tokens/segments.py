"""ANDREA's own vocabulary: 256 bytes and Harris segments, as far as is known.

What is assumed, for the published files say nothing of it: byte b is token b; segment k of the list is token 256 + k;
the last id of the vocabulary spells nothing; a text is cut from its beginning into the longest segments that fit, and
where none fits, into bytes.
"""

from __future__ import annotations

import json
from collections import defaultdict

from andrea_export.core.errors import UsageError, first_line
from andrea_export.tokens.tokenizer import ByteStream

_NUM_BYTES = 256
ASSUMED = "segment k of the list is token 256 + k, and the longest segment that fits is taken"


class SegmentTokenizer:
    """A ``Tokenizer`` over a JSON list of segments. Raises: UsageError for any other file."""

    def __init__(self, content: str, where: str) -> None:
        try:
            segments = json.loads(content)
            wrong = not isinstance(segments, list) or not all(isinstance(one, str) and one for one in segments)
            spelled = [] if wrong else [one.encode("utf-8") for one in segments]
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{where} is not a list of segments: {first_line(error)}") from None
        if wrong:
            raise UsageError(f"{where} is not a list of segments: expected a JSON list of texts, none of them empty")
        if len(set(spelled)) != len(spelled):
            twice = next(one for one in segments if segments.count(one) > 1)
            raise UsageError(f"{where} names segment {twice!r} twice")
        self._segments = spelled
        self.vocab_size = _NUM_BYTES + len(spelled)
        lengths: defaultdict[int, set[int]] = defaultdict(set)
        for one in spelled:
            lengths[one[0]].add(len(one))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        self._ids = {one: _NUM_BYTES + index for index, one in enumerate(spelled)}

    def encode(self, text: str) -> tuple[int, ...]:
        return self.encode_bytes(text.encode("utf-8"))

    def encode_bytes(self, content: bytes) -> tuple[int, ...]:
        found: list[int] = []
        at = 0
        while at < len(content):
            first = content[at]
            candidates = (content[at : at + length] for length in self._lengths.get(first, ()))
            segment = next((one for one in candidates if one in self._ids), None)
            found.append(first if segment is None else self._ids[segment])
            at += 1 if segment is None else len(segment)
        return tuple(found)

    def spelled(self, token: int) -> bytes | None:
        if token < _NUM_BYTES:
            return bytes([token])
        return self._segments[token - _NUM_BYTES] if token < self.vocab_size else None

    def stream(self) -> ByteStream:
        return ByteStream(self.spelled)
