"""What runs one model, whatever it is: the protocol, how a machine says what it can do, and the cache between steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from andrea_model.config import AndreaConfig

Feeds = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """Whether this machine can do one thing; if not, why, and the command that brings it."""

    available: bool
    reason: str = ""
    hint: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


class Session(Protocol):
    """Something that runs one model. Used as a context manager; what it holds is released at the end."""

    name: str
    """How reports call it: ``onnxruntime-cpu``, ``tensorrt-rtx-fp16``."""
    output_names: tuple[str, ...]

    def run(self, feeds: Feeds) -> dict[str, npt.NDArray[Any]]:
        """Every output for these inputs. Raises: RunError."""
        ...

    def close(self) -> None:
        """Releases what the session holds."""
        ...

    def __enter__(self) -> Session: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


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
