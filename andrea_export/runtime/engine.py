"""What generates: a graph on a provider that takes prompts once, then one token a row at a time.

Owns the interface and one error; ``shared_cache.py`` and ``growing_cache.py`` are the two engines that there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from andrea_export.core.errors import BackendUnavailable, RunError
from andrea_export.sessions.onnxruntime import is_out_of_memory

LogitsBV = npt.NDArray[np.float32]


class Engine(Protocol):
    """Rows that grow together. What a call returns is overwritten by the next one."""

    name: str
    """How reports call it: ``onnxruntime-cpu (ort-cpu-int8)``."""

    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> LogitsBV:
        """Forgets what was, takes one prompt a row; the logits ``[B, V]`` after each.

        ``capacity``: the tokens a row may come to. Raises: RunError, BackendUnavailable (out of memory).
        """
        ...

    def step(self, tokens: Sequence[int]) -> LogitsBV:
        """One more token for every row; the logits ``[B, V]`` after it. Raises: RunError, BackendUnavailable."""
        ...

    def close(self) -> None:
        """Releases sessions and buffers."""
        ...


def raise_run_error(name: str, error: Exception) -> NoReturn:
    """Turns what onnxruntime or numpy raised while running into this project's error."""
    if isinstance(error, MemoryError) or is_out_of_memory(error):
        raise BackendUnavailable(
            f"{name}: out of memory", hint="use a shorter prompt, fewer rows, or int8 or int4"
        ) from error
    raise RunError(f"{name}: {' '.join(str(error).split())[:400]}") from error


def as_int64(values: Sequence[int]) -> npt.NDArray[Any]:
    """Token ids as onnxruntime reads them."""
    return np.asarray(values, np.int64)
