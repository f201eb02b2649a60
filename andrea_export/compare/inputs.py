"""What is run: the cases of a comparison, made from seeded tokens or from a file of them.

Two cases cover the graph's two uses: a prefill of rows of unequal length (left-padded, empty cache) and the decode
steps that follow it (full rows of cache, each run's own). The error of a layer is taken over both.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea_export.core.errors import BackendUnavailable, UsageError
from andrea_export.core.profile import Profile
from andrea_export.tokens.tokenizer import BYTES, Tokenizer, outside_vocabulary
from andrea_model.config import AndreaConfig

Arrays = dict[str, npt.NDArray[Any]]

NUM_PREFILL, NUM_DECODE, NUM_ROWS = 48, 4, 3
BUILT_IN_TEXT = resources.files("andrea_export.compare") / "gettysburg.txt"
"""What the language model is judged on where no text is given: the Gettysburg Address (1863, the Bliss copy), in the
public domain. Its bytes are token ids as they stand: text to a byte-level model, a fixed sequence to any other."""
_MAX_BATCH = 8  # the engines' optimization profile takes no more rows by default (recipe.Profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run: ``input_ids`` and ``position_ids`` ``[B, S]``, ``attention_mask`` ``[B, P + S]``, all int64.

    ``past_of`` names the earlier case whose present keys and values are the cache; None is an empty cache.
    """

    name: str
    input_ids: npt.NDArray[np.int64]
    attention_mask: npt.NDArray[np.int64]
    position_ids: npt.NDArray[np.int64]
    past_of: str | None = None

    @property
    def token_positions(self) -> npt.NDArray[np.int64]:
        """The position of every token in the cache and of every new one ``[B, P + S]``; −1 for padding."""
        positions = self.attention_mask.cumsum(axis=1) - 1
        return np.where(self.attention_mask != 0, positions, -1)

    @property
    def feeds(self) -> Arrays:
        """The inputs without the cache."""
        return {"input_ids": self.input_ids, "attention_mask": self.attention_mask, "position_ids": self.position_ids}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The cases of a comparison, the tokens the language model is judged on, and where all of them came from."""

    cases: tuple[Case, ...]
    text: tuple[int, ...] = ()
    """Empty: the language model is not judged."""
    source: str = ""

    def as_mapping(self) -> dict[str, Any]:
        """As a report states them."""
        stated: dict[str, Any] = {
            case.name: {
                "batch": int(case.input_ids.shape[0]),
                "sequence": int(case.input_ids.shape[1]),
                "past": int(case.attention_mask.shape[1] - case.input_ids.shape[1]),
                "padding": [int(count) for count in (case.attention_mask == 0).sum(axis=1)],
            }
            for case in self.cases
        }
        return {**stated, "tokens": self.source, "text_tokens": len(self.text)}


def seeded_cases(config: AndreaConfig, *, seed: int = 0) -> tuple[Case, ...]:
    """Three rows of 48 random tokens (padded by 0, 6 and 24), and four steps of decode after them."""
    return cases_within(Profile(), config, seed=seed)


def cases_within(profile: Profile, config: AndreaConfig, *, seed: int = 0) -> tuple[Case, ...]:
    """The seeded cases in sizes that an engine of this profile takes; only the prefill where no decode after it fits.

    Raises: BackendUnavailable where the profile has no empty cache, without which nothing can begin.
    """
    if profile.past.min > 0:
        raise BackendUnavailable(
            f"the engine's profile begins at {profile.past.min} cached tokens, and a comparison begins at none",
            hint="build it with past.min = 0",
        )
    rows = min(max(NUM_ROWS, profile.batch.min), profile.batch.max)
    prefill = min(max(NUM_PREFILL, profile.sequence.min), profile.sequence.max, config.n_ctx)
    decode = min(max(NUM_DECODE, profile.sequence.min), profile.sequence.max)
    if profile.past.max >= NUM_DECODE and profile.sequence.min <= profile.past.max:
        prefill = min(prefill, profile.past.max)  # so that the steps after it fit
    fits = prefill <= profile.past.max and prefill + decode <= config.n_ctx
    ids = np.random.default_rng(seed).integers(0, config.vocab_size, (rows, prefill))
    after = np.random.default_rng(seed + 1).integers(0, config.vocab_size, (rows, decode)) if fits else None
    padding = np.resize([0, prefill // 8, prefill // 2], rows)
    return _padded_cases(ids, after, padding)


def cases_from_tokens(rows: Sequence[Sequence[int]]) -> tuple[Case, ...]:
    """The rows as one left-padded batch; the last tokens of each (up to four, one always left) are decoded after it."""
    num_decode = min(NUM_DECODE, min(len(row) for row in rows) - 1)
    prompts = [list(row[: len(row) - num_decode]) for row in rows]
    longest = max(len(prompt) for prompt in prompts)
    padding = np.array([longest - len(prompt) for prompt in prompts])
    ids = np.array([[0] * (longest - len(prompt)) + prompt for prompt in prompts], np.int64)
    after = np.array([row[len(row) - num_decode :] for row in rows], np.int64) if num_decode else None
    return _padded_cases(ids, after, padding)


def tokens_from_file(file: Path, config: AndreaConfig) -> tuple[tuple[int, ...], ...]:
    """The token rows in a file: JSON (``[[1, 2], [3]]`` or ``[1, 2]``), or a row a line, ids apart by commas or spaces.

    Raises: UsageError for a file that is missing, empty, or holds what is not a token of this model; every row at
    fault is named.
    """
    try:
        content = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"inputs {file}: not text", hint=_HINT) from None
    except OSError as error:
        raise UsageError(f"inputs {file}: {error.strerror}") from None
    rows = _rows_from_json(content, file) if content.lstrip()[:1] == "[" else _rows_from_lines(content, file)
    if not any(rows):
        raise UsageError(f"inputs {file}: no token in it, expected at least one", hint=_HINT)
    problems = [problem for index, row in enumerate(rows) for problem in _problems(index, row, config)]
    if len(rows) > _MAX_BATCH:
        problems.append(f"{len(rows)} rows, expected at most {_MAX_BATCH}")
    if problems:
        raise UsageError(f"inputs {file}: {'; '.join(problems[:8])}", hint=_HINT)
    return tuple(tuple(row) for row in rows)


def text_tokens(file: Path, config: AndreaConfig, tokenizer: Tokenizer = BYTES) -> tuple[int, ...]:
    """The tokens of a text: a ``.txt`` file's content, or the token ids in any other file. Raises: UsageError."""
    if file.suffix == ".txt":
        try:
            content = file.read_bytes()
        except OSError as error:
            raise UsageError(f"text {file}: {error.strerror}") from None
        if not content:
            raise UsageError(f"text {file} is empty")
        tokens = tokenizer.encode_bytes(content)[: config.n_ctx + 1]
        if outside := outside_vocabulary(config, tokens):
            raise UsageError(f"text {file}: {outside[0]}")
        return tokens
    rows = tokens_from_file(file, replace(config, n_ctx=config.n_ctx + 1))
    return tuple(token for row in rows for token in row)[: config.n_ctx + 1]


_HINT = "one row of token ids a line, for example 5,17,42"


def _padded_cases(
    ids: npt.NDArray[np.int64], after: npt.NDArray[np.int64] | None, padding: npt.NDArray[np.int64]
) -> tuple[Case, ...]:
    mask = (np.arange(ids.shape[1]) >= padding[:, None]).astype(np.int64)
    prefill = Case(
        name="prefill", input_ids=ids, attention_mask=mask, position_ids=np.maximum(mask.cumsum(axis=1) - 1, 0)
    )
    if after is None:
        return (prefill,)
    whole = np.concatenate([mask, np.ones_like(after)], axis=1)
    positions = np.maximum(whole.cumsum(axis=1) - 1, 0)[:, -after.shape[1] :]
    decode = Case(name="decode", input_ids=after, attention_mask=whole, position_ids=positions, past_of="prefill")
    return (prefill, decode)


def _rows_from_json(content: str, file: Path) -> list[list[int]]:
    try:
        rows = json.loads(content)
    except json.JSONDecodeError as error:
        raise UsageError(f"inputs {file} is not JSON: {error}", hint=_HINT) from None
    rows = rows if rows and all(isinstance(row, list) for row in rows) else [rows]
    wrong = [entry for row in rows for entry in row if not isinstance(entry, int) or isinstance(entry, bool)]
    if wrong:
        raise UsageError(f"inputs {file}: {wrong[0]!r} is not a token id", hint=_HINT)
    return [list(row) for row in rows]


def _rows_from_lines(content: str, file: Path) -> list[list[int]]:
    rows = []
    for number, line in enumerate(content.splitlines(), start=1):
        words = line.replace(",", " ").split()
        wrong = [word for word in words if not (word.isascii() and word.removeprefix("-").isdecimal())]
        if wrong:
            raise UsageError(f"inputs {file}, line {number}: '{wrong[0]}' is not a token id", hint=_HINT)
        if words:
            rows.append([int(word) for word in words])
    return rows


def _problems(index: int, row: Sequence[int], config: AndreaConfig) -> list[str]:
    problems = []
    if not row:
        problems.append(f"row {index + 1} is empty")
    if len(row) > config.n_ctx:
        problems.append(f"row {index + 1} has {len(row)} tokens, and the model has {config.n_ctx} positions")
    outside = [token for token in row if not 0 <= token < config.vocab_size]
    if outside:
        problems.append(f"row {index + 1}: token {outside[0]} is outside the vocabulary (0 to {config.vocab_size - 1})")
    return problems


def built_in_tokens(config: AndreaConfig, tokenizer: Tokenizer = BYTES) -> tuple[int, ...]:
    """The text's tokens: what fills the context, and one more to predict. None where the vocabulary is too small."""
    if config.vocab_size < tokenizer.vocab_size:
        return ()
    return tokenizer.encode_bytes(BUILT_IN_TEXT.read_bytes())[: config.n_ctx + 1]
