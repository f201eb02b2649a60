"""Generation over one preallocated cache: everything is bound once, a step writes its token and runs.

Owns the buffers, the chunks a prompt is cut into, and what is bound to what.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea_export.core.errors import RunError, UsageError
from andrea_export.core.names import KEEP, SEQLENS, TOTAL, present_names
from andrea_export.runtime.engine import LogitsBV, as_int64, raise_run_error
from andrea_export.runtime.pages import zero_pages
from andrea_export.sessions.onnxruntime import input_dtype, onnxruntime_errors
from andrea_model.config import AndreaConfig

CHUNK = 128
"""Tokens of a prompt in one run. Attention over a chunk reads only the keys there are by then, about half of all in a
full context; longer chunks lose that, shorter ones read the weights more often. Measured in docs/runtime.md."""

_MOST_BINDINGS = 64
"""Kept at most beside those a batch needs, for prompts of other lengths: some 30 kB each for ANDREA-120M."""
_CAPACITY_STEP = 128
"""A cache's capacity is a multiple of it, so that texts of about one length have buffers of one shape; what is not
filled costs nothing."""


@dataclass(slots=True, kw_only=True)
class _Binding:
    """One session bound to a range of rows and a number of tokens; the arrays are its inputs and its logits."""

    session: Any
    io: Any
    ids_BS: npt.NDArray[np.int64]
    positions_BS: npt.NDArray[np.int64]
    seqlens_B: npt.NDArray[np.int32]
    total: npt.NDArray[np.int32]
    memory: list[npt.NDArray[Any]]
    """What onnxruntime writes to: there as long as somebody may be running this, whatever the engine does meanwhile."""
    keep: npt.NDArray[np.int64] = field(default_factory=lambda: np.ones(1, np.int64))


class SharedCacheEngine:
    """Runs an ``ort-cpu`` graph, or two: one for prompts, one for tokens, over the same cache.

    ``rows_independent``: the graph gives a row the same bits whatever runs beside it, so rows may share a run. Where it
    does not, each row has its own.
    """

    def __init__(
        self, *, name: str, decode: Any, prefill: Any, config: AndreaConfig, rows_independent: bool, chunk: int = CHUNK
    ) -> None:
        self.name = name
        self._decode, self._prefill, self._config = decode, prefill, config
        self._rows_independent, self._chunk = rows_independent, chunk
        self._inputs = {id(session): {entry.name for entry in session.get_inputs()} for session in (decode, prefill)}
        self._caches: dict[str, npt.NDArray[Any]] = {}
        self._cache_dtype = input_dtype(decode, "past_key_values.0.key")
        self._logits_BV: LogitsBV = np.empty((0, config.vocab_size), np.float32)
        self._bindings: dict[tuple[int, int, int, int], _Binding] = {}
        self._num_filled: list[int] = []
        self._steps: list[_Binding] = []
        self._errors = onnxruntime_errors()

    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> LogitsBV:
        """Runs every prompt, row by row and chunk by chunk, into its part of the cache. Raises: see ``Engine``."""
        config, num_rows = self._config, len(prompts)
        capacity = min(-(-capacity // _CAPACITY_STEP) * _CAPACITY_STEP, config.n_ctx)
        shape = (num_rows, config.n_head, capacity, config.d_head)
        self._steps.clear()
        self._num_filled = []
        try:
            self._reserve(shape)
        except MemoryError as error:
            raise_run_error(self.name, error)
        for row, prompt in enumerate(prompts):
            self._prompt(row, as_int64(prompt))
        self._num_filled = [len(prompt) for prompt in prompts]
        return self._logits_BV

    def step(self, tokens: Sequence[int]) -> LogitsBV:
        """Appends one token a row. Raises: see ``Engine``."""
        if not self._steps:  # not before a prompt's logits are out, which may be all that is wanted
            self._bind_steps()
        row = 0
        for binding in self._steps:
            for place in range(len(binding.ids_BS)):
                binding.ids_BS[place, 0] = tokens[row]
                binding.seqlens_B[place] += 1
                binding.positions_BS[place, 0] = binding.seqlens_B[place]
                row += 1
            binding.total[0] = binding.seqlens_B.max() + 1
            self._run(binding)
        return self._logits_BV

    def close(self) -> None:
        """Releases sessions and buffers."""
        self._steps.clear()
        self._bindings.clear()
        self._caches.clear()
        self._decode = self._prefill = None

    def __enter__(self) -> SharedCacheEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _reserve(self, shape: tuple[int, ...]) -> None:
        """Buffers of this shape: the last text's if they have it, since what they hold is overwritten or not read."""
        if self._caches and next(iter(self._caches.values())).shape == shape:
            return
        self._bindings.clear()
        self._caches.clear()  # first, so that there are never two sets
        self._logits_BV = np.empty((shape[0], self._config.vocab_size), np.float32)
        whole = zero_pages((self._config.n_layer, 2, *shape), self._cache_dtype)
        self._caches = {
            f"{block}.{part}": whole[block, place]
            for block in range(self._config.n_layer)
            for place, part in enumerate(("key", "value"))
        }

    def _bind_steps(self) -> None:
        """One run a step for all rows, or one for each. Raises: RunError if no text was begun."""
        num_rows, steps = len(self._num_filled), []
        if not num_rows:
            raise RunError(f"{self.name}: a step before a prompt")
        together = self._rows_independent or num_rows == 1
        for first, last in [(0, num_rows)] if together else [(row, row + 1) for row in range(num_rows)]:
            binding = self._bind(self._decode, first, last, 1)
            for place, row in enumerate(range(first, last)):
                binding.seqlens_B[place] = self._num_filled[row] - 1
            steps.append(binding)
        self._steps = steps

    def _prompt(self, row: int, ids_S: npt.NDArray[np.int64]) -> None:
        """One row's prompt. A prefill graph without logits leaves the last token to the decoding graph."""
        if self._prefill is None:
            raise UsageError("the model is closed")
        fills_only = KEEP not in self._inputs[id(self._prefill)]
        num_filled = len(ids_S) - 1 if fills_only else len(ids_S)
        for begin in range(0, num_filled, self._chunk):
            end = min(begin + self._chunk, num_filled)
            self._run_at(self._bind(self._prefill, row, row + 1, end - begin), ids_S[begin:end], begin)
        if fills_only:
            self._run_at(self._bind(self._decode, row, row + 1, 1), ids_S[-1:], len(ids_S) - 1)

    def _run_at(self, binding: _Binding, ids_S: npt.NDArray[np.int64], begin: int) -> None:
        end = begin + len(ids_S)
        binding.ids_BS[0] = ids_S
        binding.positions_BS[0] = np.arange(begin, end)
        binding.seqlens_B[0], binding.total[0] = end - 1, end
        self._run(binding)

    def _run(self, binding: _Binding) -> None:
        try:
            binding.session.run_with_iobinding(binding.io)
        except self._errors as error:
            raise_run_error(self.name, error)

    def _bind(self, session: Any, first: int, last: int, num_tokens: int) -> _Binding:
        """The session over rows first … last − 1, in place: past and present are the same memory.

        A binding takes as long as a few layers, so each is kept as long as the buffers are; whole, or not at all.
        """
        if session is None:
            raise UsageError("the model is closed")
        key = (id(session), first, last, num_tokens)
        if key in self._bindings:
            return self._bindings[key]
        if len(self._bindings) >= _MOST_BINDINGS + 2 * len(self._logits_BV):  # a chunk and a step of every row
            self._bindings.clear()
        num_rows = last - first
        binding = _Binding(
            session=session,
            io=session.io_binding(),
            ids_BS=np.zeros((num_rows, num_tokens), np.int64),
            positions_BS=np.zeros((num_rows, num_tokens), np.int64),
            seqlens_B=np.zeros(num_rows, np.int32),
            total=np.zeros(1, np.int32),
            memory=[self._logits_BV],
        )
        arrays: dict[str, npt.NDArray[Any]] = {
            "input_ids": binding.ids_BS,
            "position_ids": binding.positions_BS,
            SEQLENS: binding.seqlens_B,
            TOTAL: binding.total,
            KEEP: binding.keep,
        }
        for block in range(self._config.n_layer):
            for part, name in zip(("key", "value"), present_names(block), strict=True):
                cache = self._caches[f"{block}.{part}"][first:last]
                arrays[f"past_key_values.{block}.{part}"] = cache
                binding.memory.append(cache)
                _bind_output(binding.io, name, cache)
        for name, array in arrays.items():
            if name in self._inputs[id(session)]:
                binding.io.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        if KEEP in self._inputs[id(session)]:
            logits = self._logits_BV[first:last].reshape(num_rows, 1, -1)
            _bind_output(binding.io, "logits", logits)
        self._bindings[key] = binding
        return binding


def _bind_output(io: Any, name: str, array: npt.NDArray[Any]) -> None:
    io.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
