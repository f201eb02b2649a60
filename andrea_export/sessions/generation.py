"""Greedy generation over any Session with a KV cache: the prompt in one run, then one token a run.

Owns the loop and what it refuses; prints nothing, loads nothing.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from andrea_export.core.errors import RunError, UsageError
from andrea_export.sessions.base import Session, zero_cache
from andrea_model.config import AndreaConfig

_FP32 = np.dtype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedToken:
    """One new token, and the milliseconds from the step's start to having it (the first: the whole prompt)."""

    id: int
    step_ms: float


def check_generation(config: AndreaConfig, prompt: Sequence[int], max_new_tokens: int) -> None:
    """Refuses what cannot be generated, before anything is loaded.

    The stop rule: prompt and new tokens together must fit the context. A longer request is refused rather than cut
    short, so that whoever asks for N tokens gets N.

    Raises: UsageError naming every problem at once.
    """
    problems = _problems_of(config, prompt)
    if max_new_tokens < 1:
        problems.append(f"{max_new_tokens} new tokens asked for, expected at least 1")
    elif len(prompt) + max_new_tokens > config.n_ctx:
        problems.append(
            f"{len(prompt)} prompt + {max_new_tokens} new tokens are {len(prompt) + max_new_tokens} positions, "
            f"and the model has {config.n_ctx}"
        )
    if problems:
        raise UsageError("; ".join(problems), hint=_what_fits(config))


def check_prompt(config: AndreaConfig, prompt: Sequence[int]) -> None:
    """Refuses a prompt that nothing is to follow, which may fill the context. Raises: UsageError."""
    problems = _problems_of(config, prompt)
    if len(prompt) > config.n_ctx:
        problems.append(f"the prompt has {len(prompt)} tokens, and the model has {config.n_ctx} positions")
    if problems:
        raise UsageError("; ".join(problems), hint=_what_fits(config))


def token_ids(prompt: Iterable[SupportsIndex]) -> list[int]:
    """A prompt as plain integers, whatever kind of integers it holds. Raises: UsageError for what holds none."""
    try:
        return [operator.index(token) for token in prompt]
    except TypeError:
        kind = type(prompt).__name__
        raise UsageError(f"the prompt is no sequence of token ids: {kind} {str(prompt)[:40]!r}") from None


def _problems_of(config: AndreaConfig, prompt: Sequence[int]) -> list[str]:
    problems = []
    if not prompt:
        problems.append("the prompt is empty, expected at least one token id")
    outside = [token for token in prompt if not 0 <= token < config.vocab_size]
    if outside:
        shown = ", ".join(str(token) for token in outside[:8]) + (", …" if len(outside) > 8 else "")
        problems.append(f"token id {shown} is outside the vocabulary, expected 0 to {config.vocab_size - 1}")
    return problems


def _what_fits(config: AndreaConfig) -> str:
    return f"token ids are 0 to {config.vocab_size - 1}; prompt and new tokens together are at most {config.n_ctx}"


def greedy(
    session: Session,
    config: AndreaConfig,
    prompt: Sequence[int],
    max_new_tokens: int,
    *,
    cache_dtype: np.dtype[Any] = _FP32,
) -> Iterator[GeneratedToken]:
    """Yields ``max_new_tokens`` tokens as they come, each the argmax of its logits (of equal ones the lowest id).

    ``cache_dtype`` is the session's type of keys and values.

    Raises: UsageError (see ``check_generation``), RunError if a step fails or gives logits that are not finite.
    """
    check_generation(config, prompt, max_new_tokens)
    cache = zero_cache(config, batch=1, past=0, dtype=cache_dtype)
    tokens = list(prompt)
    num_cached = 0
    for _ in range(max_new_tokens):
        started = time.perf_counter()
        outputs = session.run(step_feeds(tokens[num_cached:], num_cached, cache))
        cache = {
            f"past_key_values.{name.removeprefix('present.')}": value
            for name, value in outputs.items()
            if name != "logits"
        }
        num_cached = len(tokens)
        token = _argmax(outputs["logits"][0, -1], session.name, position=num_cached - 1)
        tokens.append(token)
        yield GeneratedToken(id=token, step_ms=(time.perf_counter() - started) * 1e3)


def step_feeds(
    tokens: Sequence[int], num_cached: int, cache: dict[str, npt.NDArray[Any]]
) -> dict[str, npt.NDArray[Any]]:
    """The graph's inputs for one row without padding: these tokens after ``num_cached`` cached ones."""
    positions = np.arange(num_cached, num_cached + len(tokens), dtype=np.int64)
    return {
        "input_ids": np.array([tokens], dtype=np.int64),
        "attention_mask": np.ones((1, num_cached + len(tokens)), dtype=np.int64),
        "position_ids": positions[None],
        **cache,
    }


def _argmax(logits_V: npt.NDArray[Any], session: str, *, position: int) -> int:
    if not np.isfinite(logits_V).all():
        raise RunError(
            f"{session}: {int((~np.isfinite(logits_V)).sum())} of {logits_V.size} logits at position {position} are "
            "NaN or Inf",
            hint="run `andrea-export validate` on the bundle",
        )
    return int(np.argmax(logits_V))
