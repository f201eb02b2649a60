"""Decoding over one preallocated cache: a step writes its tokens in place and runs.

Owns the chunks a prompt is cut into, and whose buffers the next text takes over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea_export.runtime.bound_cache import Binding, BoundCache
from andrea_export.runtime.decoder import Decoder, LogitsBV, RewindableGeneration, raise_closed
from andrea_export.sessions.onnxruntime import input_dtype
from andrea_model.config import AndreaConfig

CHUNK = 128
"""Tokens of a prompt in one run. Attention over a chunk reads only the keys there are by then, about half of all in a
full context; longer chunks lose that, shorter ones read the weights more often. Measured in
docs/measurements/cpu-runtime.md."""

_CAPACITY_STEP = 128
"""A cache's capacity is a multiple of it, so that texts of about one length have buffers of one shape; what is not
filled costs nothing."""


class SharedCacheDecoder(Decoder):
    """Runs an ``ort-cpu`` graph. A row's results do not depend on those beside it, so rows share a run."""

    def __init__(self, *, name: str, session: Any, config: AndreaConfig, chunk: int = CHUNK) -> None:
        super().__init__(name)
        self.session: Any = session
        self.chunk = chunk
        self._config, self._cache_dtype = config, input_dtype(session, "past_key_values.0.key")
        # The buffers of the text that ended last. A deque's own operations need no lock.
        self._spare: deque[BoundCache] = deque(maxlen=1)

    def take_back(self, cache: BoundCache) -> None:
        """Keeps a finished generation's buffers for the next one of their shape."""
        self._spare.append(cache)
        if self.closed:
            self._spare.clear()

    def _generation(self, num_rows: int, capacity: int) -> SharedCacheGeneration:
        config, session = self._config, self.session
        if session is None:
            raise_closed(self)
        capacity = min(-(-capacity // _CAPACITY_STEP) * _CAPACITY_STEP, config.n_ctx)
        shape = (num_rows, config.n_head, capacity, config.d_head)
        try:
            cache = self._spare.pop()  # what it holds is overwritten or not read
        except IndexError:
            cache = None
        if cache is None or cache.shape != shape:
            del cache  # first, so that there are never two sets
            cache = BoundCache(session, config, shape, self._cache_dtype)
        return SharedCacheGeneration(self, cache)

    def _release(self) -> None:
        self.session = None
        self._spare.clear()


class SharedCacheGeneration(RewindableGeneration):
    """Texts in progress on a ``SharedCacheDecoder``."""

    def __init__(self, decoder: SharedCacheDecoder, cache: BoundCache) -> None:
        self.logits_BV = cache.logits_BV
        self.num_filled = [0] * cache.shape[0]
        self._decoder = decoder
        self._cache: BoundCache | None = cache
        self._step: Binding | None = None

    @property
    def cache(self) -> BoundCache:
        """Its buffers. Raises: UsageError once it is closed."""
        if self._cache is None:
            raise_closed(self._decoder)
        return self._cache

    def fill(self, prompts: Sequence[Sequence[int]]) -> None:
        """Runs every prompt, row by row and chunk by chunk. Raises: see ``Generation``."""
        chunk = self._decoder.chunk
        for row, prompt in enumerate(prompts):
            ids_S = np.asarray(prompt, np.int64)
            for begin in range(0, len(ids_S), chunk):
                self._append(row, ids_S[begin : begin + chunk])

    def step(self, tokens: Sequence[int]) -> LogitsBV:
        """Appends one token a row. Raises: see ``Generation``."""
        # Not bound before a prompt's logits are out, which may be all that is wanted; held here, for another thread may
        # close the model meanwhile.
        step = self._step or self.cache.bind(0, len(self.num_filled), 1)
        self._step = step
        step.ids_BS[:, 0] = tokens
        step.positions_BS[:, 0] = step.seqlens_B[:] = self.num_filled
        step.total[0] = step.seqlens_B.max() + 1
        self._decoder.run(step.session, step.io)
        self.num_filled = [filled + 1 for filled in self.num_filled]
        return self.logits_BV

    def append(self, tokens: Sequence[int]) -> LogitsBV:
        """See ``RewindableGeneration``."""
        binding = self._append(0, np.asarray(tokens, np.int64), len(tokens))
        logits_SV: LogitsBV = binding.logits_BKV[0]
        return logits_SV

    def rewind(self, num_filled: int) -> None:
        """See ``RewindableGeneration``: lengths change, nothing is copied."""
        self.num_filled[0] = num_filled

    def close(self) -> None:
        """Gives the buffers back."""
        cache, self._cache, self._step = self._cache, None, None
        if cache is not None:
            self._decoder.take_back(cache)

    def _append(self, row: int, ids_S: npt.NDArray[np.int64], num_kept: int = 1) -> Binding:
        """Runs these tokens of one row, after those in the cache; the last ``num_kept`` get logits."""
        begin = self.num_filled[row]
        end = begin + len(ids_S)
        binding = self.cache.bind(row, row + 1, len(ids_S), num_kept)
        binding.ids_BS[0] = ids_S
        binding.positions_BS[0] = np.arange(begin, end)
        binding.seqlens_B[0], binding.total[0] = end - 1, end
        self._decoder.run(binding.session, binding.io)
        self.num_filled[row] = end
        return binding
