"""A tokenizer that Hugging Face's ``tokenizers`` runs: a byte-level ``tokenizer.json``, or GPT-2's two files as one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from andrea_export.core.errors import BackendUnavailable, UsageError, first_line
from andrea_export.tokens.byte_level import BYTE_OF, CHARACTERS
from andrea_export.tokens.tokenizer import ByteStream


class LibraryTokenizer:
    """A ``Tokenizer`` over a ``tokenizer.json``. Its tokens are bytes, so that any bytes can go in and come out.

    Raises: BackendUnavailable (the package is not installed), UsageError (not a tokenizer.json).
    """

    def __init__(self, content: str, where: str) -> None:
        self._tokenizer = _parsed(content, where)
        self._added: dict[int, str] = {
            token: entry.content for token, entry in self._tokenizer.get_added_tokens_decoder().items()
        }
        self.vocab_size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    @property
    def missing_bytes(self) -> tuple[int, ...]:
        """The bytes that no token spells alone."""
        return tuple(byte for byte, character in enumerate(CHARACTERS) if self._id(character) is None)

    def encode(self, text: str) -> tuple[int, ...]:
        return self.encode_bytes(text.encode("utf-8"))

    def encode_bytes(self, content: bytes) -> tuple[int, ...]:
        """Bytes that are not UTF-8 are a token each. Raises: UsageError for a byte that no token spells."""
        if missing := sorted(set(content) & set(self.missing_bytes)):
            raise UsageError(f"the tokenizer has no token for byte {missing[0]:#04x}", hint="give other text")
        found: list[int] = []
        for piece in _pieces(content.decode("utf-8", "surrogateescape")):
            if piece[0] >= "\udc80" and piece[0] <= "\udcff":
                found += [self._tokenizer.token_to_id(CHARACTERS[ord(piece) - 0xDC00])]
            else:
                found += self._tokenizer.encode(piece).ids
        return tuple(found)

    def spelled(self, token: int) -> bytes | None:
        if (content := self._added.get(token)) is not None:
            return content.encode("utf-8")
        text = self._tokenizer.id_to_token(token)
        return None if text is None else bytes(BYTE_OF[character] for character in text)

    def stream(self) -> ByteStream:
        return ByteStream(self.spelled)

    def _id(self, character: str) -> int | None:
        found: int | None = self._tokenizer.token_to_id(character)
        return found


def _pieces(text: str) -> Iterator[str]:
    """The text cut so that every byte that is not UTF-8 is a piece of its own."""
    begin = 0
    for at, character in enumerate(text):
        if "\udc80" <= character <= "\udcff":
            if begin < at:
                yield text[begin:at]
            yield character
            begin = at + 1
    if begin < len(text):
        yield text[begin:]


def json_from_gpt2(vocab: Path, merges: Path, special: Mapping[str, Any]) -> str:
    """GPT-2's ``vocab.json`` and ``merges.txt`` as one ``tokenizer.json``, with its special tokens.

    Raises: UsageError for files that are not these, or do not belong together.
    """
    tokenizers = _package()
    try:
        model = tokenizers.models.BPE.from_file(str(vocab), str(merges))
    except Exception as error:  # the library raises a bare Exception
        raise UsageError(
            f"{vocab} and {merges.name} are not a tokenizer: {first_line(error)}", hint="are they of one model?"
        ) from None
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    named = [
        "<|endoftext|>",
        *(value.get("content") if isinstance(value, dict) else value for value in special.values()),
    ]
    known = dict.fromkeys(name for name in named if isinstance(name, str) and tokenizer.token_to_id(name) is not None)
    tokenizer.add_special_tokens(list(known))
    written: str = tokenizer.to_str(pretty=True)
    return written


def check_family(content: str, where: str) -> None:
    """Raises: UsageError for a ``tokenizer.json`` whose tokens are not bytes: SentencePiece's, WordPiece's, words."""
    _parsed(content, where)
    facts = json.loads(content)
    decoders = [found.get("type") for found in _leaves(facts.get("decoder"), "decoders")]
    if "ByteLevel" not in decoders or "ByteLevel" not in [
        found.get("type") for found in _leaves(facts.get("pre_tokenizer"), "pretokenizers")
    ]:
        model = facts.get("model", {}).get("type")
        raise UsageError(
            f"{where} is a tokenizer of another family: {model}, decoder {', '.join(map(str, decoders)) or 'none'}; "
            "expected a byte-level one (ByteLevel)",
            hint="leave it out with --tokenizer none: prompts are then token ids",
        )


def _leaves(part: Any, inner: str) -> list[dict[str, Any]]:
    """A part of a tokenizer.json, or the parts of its sequence."""
    if not isinstance(part, dict):
        return []
    return [leaf for one in part[inner] for leaf in _leaves(one, inner)] if part.get("type") == "Sequence" else [part]


def _parsed(content: str, where: str) -> Any:
    tokenizers = _package()
    try:
        return tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the library raises a bare Exception
        raise UsageError(f"{where} is not a tokenizer.json: {first_line(error)}") from None


def _package() -> Any:
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.processors
    except ImportError:
        raise BackendUnavailable(
            "the Python package 'tokenizers' is not installed, which this model's text needs",
            hint="pip install 'andrea-export[tokenizers]'; token ids work without it",
        ) from None
    return tokenizers
