"""Tokenizers as files: which one a folder or an option means, what a bundle holds of it, and opening it again."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from andrea_export.core.errors import UsageError, first_line
from andrea_export.tokens.library import LibraryTokenizer, check_family, json_from_gpt2
from andrea_export.tokens.segments import ASSUMED, SegmentTokenizer
from andrea_export.tokens.tokenizer import BYTES, Tokenizer
from andrea_model.config import AndreaConfig

TokenizerKind = Literal["bytes", "library", "segments", "none"]
TOKENIZER_JSON, SEGMENTS_JSON = "tokenizer.json", "segments.json"
_FILES: Mapping[TokenizerKind, str] = {"library": TOKENIZER_JSON, "segments": SEGMENTS_JSON}
TOKENIZER_FILES = tuple(_FILES.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFacts:
    """How a bundle's text becomes tokens, as its manifest states it."""

    kind: TokenizerKind = "bytes"
    """``bytes`` needs no file; ``none``: tokens are ids alone."""
    stop: tuple[int, ...] = ()
    """The tokens that end a text, as the model's own files say."""

    @property
    def file(self) -> str | None:
        """Its file in the bundle."""
        return _FILES.get(self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTokenizer:
    """A tokenizer before it is in a bundle: what is to be stored of it."""

    facts: TokenizerFacts = TokenizerFacts()
    content: str | None = None
    notes: tuple[str, ...] = ()
    """What a user should know of it, each a sentence."""

    def open(self, where: Path) -> Tokenizer:
        """The tokenizer. Raises: as ``open_tokenizer``."""
        return open_tokenizer(self.facts.kind, self.content, str(where))


def open_tokenizer(kind: TokenizerKind, content: str | None, where: str) -> Tokenizer:
    """The tokenizer of a kind. Raises: UsageError (a damaged file, or there is none), BackendUnavailable."""
    if kind == "bytes":
        return BYTES
    if content is None:
        raise UsageError(
            f"{where} has no tokenizer", hint="give token ids, or build it with --tokenizer FILE (or bytes)"
        )
    return LibraryTokenizer(content, where) if kind == "library" else SegmentTokenizer(content, where)


def find_tokenizer(
    option: str | None, checkpoint: Path | None, config: AndreaConfig, *, bytes_by_default: bool = True
) -> FoundTokenizer:
    """The tokenizer that ``--tokenizer`` names, else the one in the checkpoint's folder, else bytes or none.

    Raises: UsageError for one whose ids exceed the vocabulary, of another family, damaged or missing.
    """
    folder = checkpoint if checkpoint is not None and checkpoint.is_dir() else None
    notes: list[str] = []
    stop = _stop_tokens(folder, config, notes) if folder is not None else ()
    kind, content, where = _named(option) if option is not None else _inside(folder)
    if folder is None and option is None and not bytes_by_default:
        kind, where = "none", str(checkpoint)
    facts = TokenizerFacts(kind=kind, stop=stop)
    if kind == "none" or (kind == "bytes" and option is None):
        if kind == "none" and option is None:
            notes.append(f"{where} has no tokenizer, so text is token ids; --tokenizer names one")
        return FoundTokenizer(facts=facts, notes=tuple(notes))
    tokenizer = open_tokenizer(kind, content, where)
    if tokenizer.vocab_size > config.vocab_size:
        raise UsageError(
            f"{where} has token ids up to {tokenizer.vocab_size - 1}, and the model's vocabulary ends at "
            f"{config.vocab_size - 1}",
            hint="it is not this model's tokenizer: name another with --tokenizer",
        )
    missing = getattr(tokenizer, "missing_bytes", ())
    if missing:
        notes.append(f"{where} cannot spell {len(missing)} of 256 bytes, so text with them is refused")
    if kind == "segments":
        notes.append(f"{where}: assumed, for nothing states it: {ASSUMED}")
    return FoundTokenizer(facts=facts, content=content, notes=tuple(notes))


def _named(option: str) -> tuple[TokenizerKind, str | None, str]:
    """(kind, content, what to call it) of a name or path. Raises: UsageError."""
    if option in ("bytes", "none"):
        return ("bytes" if option == "bytes" else "none"), None, option
    path = Path(option)
    if path.is_dir():
        found = _inside(path)
        if found[0] == "none":
            raise UsageError(f"{path} has no tokenizer", hint=f"expected {_EXPECTED}")
        return found
    if path.name in ("vocab.json", "merges.txt"):
        return _inside(path.parent)
    content = _text_of(path)
    if content.lstrip()[:1] == "[":
        return "segments", content, str(path)
    check_family(content, str(path))
    return "library", content, str(path)


_EXPECTED = f"{TOKENIZER_JSON}, vocab.json with merges.txt, or {SEGMENTS_JSON}"


def _inside(folder: Path | None) -> tuple[TokenizerKind, str | None, str]:
    """What a checkpoint's folder holds; bytes where there is no folder: a file of ours says nothing else."""
    if folder is None:
        return "bytes", None, "bytes"
    if (folder / TOKENIZER_JSON).is_file():
        content = _text_of(folder / TOKENIZER_JSON)
        check_family(content, str(folder / TOKENIZER_JSON))
        return "library", content, str(folder / TOKENIZER_JSON)
    vocab, merges = folder / "vocab.json", folder / "merges.txt"
    if vocab.is_file() or merges.is_file():
        if not (vocab.is_file() and merges.is_file()):
            raise UsageError(f"{folder} has one of vocab.json and merges.txt, expected both")
        special = folder / "special_tokens_map.json"
        content = json_from_gpt2(vocab, merges, _json_of(special) if special.is_file() else {})
        return "library", content, str(vocab)
    if (folder / SEGMENTS_JSON).is_file():
        return "segments", _text_of(folder / SEGMENTS_JSON), str(folder / SEGMENTS_JSON)
    return "none", None, str(folder)


def _stop_tokens(folder: Path, config: AndreaConfig, notes: list[str]) -> tuple[int, ...]:
    """The end of text that generation_config.json states, or else config.json."""
    for name in ("generation_config.json", "config.json"):
        said = _json_of(folder / name).get("eos_token_id") if (folder / name).is_file() else None
        tokens = [token for token in (said if isinstance(said, list) else [said]) if type(token) is int]
        outside = [token for token in tokens if not 0 <= token < config.vocab_size]
        if outside:
            notes.append(f"{name}: eos_token_id {outside[0]} is outside the vocabulary, so it ends no text")
        if tokens:
            return tuple(token for token in tokens if token not in outside)
    return ()


def _json_of(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_text_of(path))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {first_line(error)}") from None
    return content if isinstance(content, dict) else {}


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"tokenizer {path} is not text", hint=f"expected {_EXPECTED}") from None
    except OSError as error:
        raise UsageError(f"tokenizer {path}: {error.strerror}", hint=f"expected {_EXPECTED}, bytes or none") from None
