"""Buffers of one shape and the session bound to them: everything is bound once, a run allocates nothing.

Owns keys, values and logits of a generation's rows, and what is bound to what.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea_export.core.names import KEEP, SEQLENS, TOTAL, present_names
from andrea_export.runtime.decoder import LogitsBV
from andrea_export.runtime.pages import zero_pages
from andrea_model.config import AndreaConfig

_MOST_BINDINGS = 64
"""Kept at most beside those a batch needs, for prompts of other lengths: some 30 kB each for ANDREA-120M."""


@dataclass(slots=True, kw_only=True)
class Binding:
    """One session bound to a range of rows and a number of tokens; the arrays are its inputs."""

    session: Any
    io: Any
    ids_BS: npt.NDArray[np.int64]
    positions_BS: npt.NDArray[np.int64]
    seqlens_B: npt.NDArray[np.int32]
    total: npt.NDArray[np.int32]
    memory: list[npt.NDArray[Any]]
    """What onnxruntime writes to: there as long as somebody may be running this, whatever is closed meanwhile."""
    keep: npt.NDArray[np.int64]
    logits_BKV: LogitsBV
    """Of the last K tokens of each row; for K = 1 a view of the cache's ``logits_BV``."""


class BoundCache:
    """Keys and values of every block, each of one shape ``[B, H, capacity, D]``, and the logits ``[B, V]``.

    Raises: MemoryError.
    """

    def __init__(self, session: Any, config: AndreaConfig, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.session, self.shape = session, shape
        self.logits_BV: LogitsBV = np.empty((shape[0], config.vocab_size), np.float32)
        self.blocks = zero_pages((config.n_layer, 2, *shape), dtype)
        self._bindings: dict[tuple[int, int, int, int], Binding] = {}

    def bind(self, first: int, last: int, num_tokens: int, num_kept: int = 1) -> Binding:
        """The session over rows first … last − 1, in place: past and present are the same memory.

        ``num_kept``: of how many of the tokens, the last ones of each row, it gives the logits.
        A binding takes as long as a few layers, so each is kept as long as the buffers are; whole, or not at all.
        """
        key = (first, last, num_tokens, num_kept)
        if key in self._bindings:
            return self._bindings[key]
        if len(self._bindings) >= _MOST_BINDINGS + 2 * self.shape[0]:  # a chunk and a step of every row
            self._bindings.clear()
        num_rows = last - first
        shape = (num_rows, num_kept, self.logits_BV.shape[1])
        logits_BKV = self.logits_BV[first:last].reshape(shape) if num_kept == 1 else np.empty(shape, np.float32)
        binding = Binding(
            session=self.session,
            io=self.session.io_binding(),
            ids_BS=np.zeros((num_rows, num_tokens), np.int64),
            positions_BS=np.zeros((num_rows, num_tokens), np.int64),
            seqlens_B=np.zeros(num_rows, np.int32),
            total=np.zeros(1, np.int32),
            memory=[self.logits_BV, logits_BKV],
            keep=np.array([num_kept], np.int64),
            logits_BKV=logits_BKV,
        )
        inputs: dict[str, npt.NDArray[Any]] = {
            "input_ids": binding.ids_BS,
            "position_ids": binding.positions_BS,
            SEQLENS: binding.seqlens_B,
            TOTAL: binding.total,
            KEEP: binding.keep,
        }
        for block, halves in enumerate(self.blocks):
            for part, name, half in zip(("key", "value"), present_names(block), halves, strict=True):
                rows = half[first:last]
                inputs[f"past_key_values.{block}.{part}"] = rows
                binding.memory.append(rows)
                _bind_output(binding.io, name, rows)
        for name, array in inputs.items():
            binding.io.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        _bind_output(binding.io, "logits", logits_BKV)
        self._bindings[key] = binding
        return binding


def _bind_output(io: Any, name: str, array: npt.NDArray[Any]) -> None:
    io.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
