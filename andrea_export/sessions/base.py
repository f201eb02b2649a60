"""What runs one model, whatever it is: the protocol, how a machine says what it can do, the cache between steps, and
greedy generation: the prompt in one run, then one token a run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from andrea_export.core.errors import RunError
from andrea_export.tokens.tokenizer import check_generation
from andrea_model.config import AndreaConfig

Feeds = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """Whether this machine can do one thing; if not, why, and the command that brings it."""

    available: bool
    reason: str = ""
    hint: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


SessionT = TypeVar("SessionT", bound="Session")


class Session(Protocol):
    """Something that runs one model. Used as a context manager; what it holds is released at the end."""

    name: str
    """How reports call it: ``onnxruntime-cpu``, ``tensorrt-rtx-fp16``."""
    output_names: tuple[str, ...]

    def run(self, feeds: Feeds) -> dict[str, npt.NDArray[Any]]:
        """Every output for these inputs. Raises: RunError."""

    def close(self) -> None:
        """Releases what the session holds."""

    def __enter__(self: SessionT) -> SessionT:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def zero_cache(config: AndreaConfig, *, batch: int, past: int, dtype: np.dtype[Any]) -> dict[str, npt.NDArray[Any]]:
    """Past keys and values of zeros, ``[B, H, P, D]`` each; with ``past=0`` the empty cache of a first step."""
    shape = (batch, config.n_head, past, config.d_head)
    return {
        f"past_key_values.{index}.{part}": np.zeros(shape, dtype)
        for index in range(config.n_layer)
        for part in ("key", "value")
    }


def cache_from(outputs: Feeds) -> dict[str, npt.NDArray[Any]]:
    """The new keys and values among a run's outputs as the next run's past ones."""
    return {
        f"past_key_values.{name.removeprefix('present.')}": value
        for name, value in outputs.items()
        if name.startswith("present.")
    }


_FP32 = np.dtype(np.float32)


def greedy(
    session: Session,
    config: AndreaConfig,
    prompt: Sequence[int],
    max_new_tokens: int,
    *,
    cache_dtype: np.dtype[Any] = _FP32,
) -> Iterator[int]:
    """Yields ``max_new_tokens`` tokens as they come, each the argmax of its logits (of equal ones the lowest id).

    ``cache_dtype`` is the session's type of keys and values.

    Raises: UsageError (see ``check_generation``), RunError if a step fails or gives logits that are not finite.
    """
    check_generation(config, prompt, max_new_tokens)
    cache = zero_cache(config, batch=1, past=0, dtype=cache_dtype)
    tokens = list(prompt)
    num_cached = 0
    for _ in range(max_new_tokens):
        outputs = session.run(step_feeds(tokens[num_cached:], num_cached, cache))
        cache = cache_from(outputs)
        num_cached = len(tokens)
        token = _argmax(outputs["logits"][0, -1], session.name, position=num_cached - 1)
        tokens.append(token)
        yield token


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
