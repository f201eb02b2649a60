"""Decoding with the canonical graph: a step's present is the next step's past, kept on the device it was made on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea_export.core.names import present_names
from andrea_export.runtime.decoder import Decoder, Generation, LogitsBV, raise_closed
from andrea_export.sessions.base import zero_cache
from andrea_model.config import AndreaConfig


class GrowingCacheDecoder(Decoder):
    """Runs ``model.onnx`` on any provider.

    ``device``: where the provider keeps its tensors, by onnxruntime's name (``cpu``, ``cuda``).
    """

    def __init__(self, *, name: str, session: Any, config: AndreaConfig, device: str) -> None:
        super().__init__(name)
        self.session, self.config, self.device = session, config, device
        self.outputs = ("logits", *(name for block in range(config.n_layer) for name in present_names(block)))

    def _generation(self, num_rows: int, capacity: int) -> GrowingCacheGeneration:
        if self.session is None:
            raise_closed(self)
        return GrowingCacheGeneration(self, self.session, np.ones((num_rows, capacity), np.int64))

    def _release(self) -> None:
        self.session = None


class GrowingCacheGeneration(Generation):
    """Texts in progress on it. Rows of unequal length are padded on the left and masked, as the graph expects.

    ``mask_BK``: ones, as many as keys may come to.
    """

    def __init__(self, decoder: GrowingCacheDecoder, session: Any, mask_BK: npt.NDArray[np.int64]) -> None:
        self._decoder, self._session, self._io = decoder, session, session.io_binding()
        self._mask_BK, self._num_keys = mask_BK, 0

    def fill(self, prompts: Sequence[Sequence[int]]) -> None:
        """All prompts in one run. Raises: see ``Generation``."""
        num_rows, length = len(prompts), max(len(prompt) for prompt in prompts)
        ids = np.zeros((num_rows, length), np.int64)
        for row, prompt in enumerate(prompts):
            ids[row, length - len(prompt) :] = prompt
            self._mask_BK[row, : length - len(prompt)] = 0
        self._num_keys = length
        empty = zero_cache(self._decoder.config, batch=num_rows, past=0, dtype=np.dtype(np.float32))
        for name, array in empty.items():
            self._io.bind_cpu_input(name, array)
        self._run(ids, np.maximum(self._mask_BK[:, :length].cumsum(axis=1) - 1, 0))

    def step(self, tokens: Sequence[int]) -> LogitsBV:
        """Appends one token a row. Raises: see ``Generation``."""
        self._num_keys += 1
        positions = self._mask_BK[:, : self._num_keys].sum(axis=1, keepdims=True) - 1
        self._run(np.asarray(tokens, np.int64)[:, None], positions)
        return self.logits_BV

    def close(self) -> None:
        """Releases session and cache."""
        self._session = self._io = None

    def _run(self, ids_BS: npt.NDArray[np.int64], positions_BS: npt.NDArray[np.int64]) -> None:
        decoder, session, io = self._decoder, self._session, self._io
        if session is None or io is None:
            raise_closed(decoder)
        io.bind_cpu_input("input_ids", ids_BS)
        io.bind_cpu_input("attention_mask", np.ascontiguousarray(self._mask_BK[:, : self._num_keys]))
        io.bind_cpu_input("position_ids", np.ascontiguousarray(positions_BS))
        for name in decoder.outputs:
            io.bind_output(name, "cpu" if name == "logits" else decoder.device)
        decoder.run(session, io)
        # A name bound again keeps the place it was first bound at.
        values = dict(zip(decoder.outputs, io.get_outputs(), strict=True))
        for block in range(decoder.config.n_layer):
            for part, name in zip(("key", "value"), present_names(block), strict=True):
                io.bind_ortvalue_input(f"past_key_values.{block}.{part}", values[name])
        self.logits_BV = values["logits"].numpy()[:, -1]
