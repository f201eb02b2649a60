"""Generation with the canonical graph: a step's present is the next step's past, kept on the device it was made on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea_export.core.names import present_names
from andrea_export.runtime.engine import LogitsBV, raise_run_error
from andrea_export.sessions.base import zero_cache
from andrea_export.sessions.onnxruntime import onnxruntime_errors
from andrea_model.config import AndreaConfig


class GrowingCacheEngine:
    """Runs ``model.onnx`` on any provider. Rows of unequal length are padded on the left and masked, as it expects.

    ``device``: where the provider keeps its tensors, by onnxruntime's name (``cpu``, ``cuda``).
    """

    def __init__(self, *, name: str, session: Any, config: AndreaConfig, device: str) -> None:
        self.name = name
        self._session, self._config, self._device = session, config, device
        self._mask_BK: npt.NDArray[np.int64] = np.empty((0, 0), np.int64)
        self._num_keys = 0
        self._io: Any = None
        self._outputs = ("logits", *(name for block in range(config.n_layer) for name in present_names(block)))
        self._errors = onnxruntime_errors()

    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> LogitsBV:
        """All prompts in one run. Raises: see ``Engine``."""
        num_rows, length = len(prompts), max(len(prompt) for prompt in prompts)
        ids = np.zeros((num_rows, length), np.int64)
        self._mask_BK = np.ones((num_rows, length + capacity), np.int64)
        for row, prompt in enumerate(prompts):
            ids[row, length - len(prompt) :] = prompt
            self._mask_BK[row, : length - len(prompt)] = 0
        self._num_keys = length
        self._io = self._session.io_binding()
        for name, array in zero_cache(self._config, batch=num_rows, past=0, dtype=np.dtype(np.float32)).items():
            self._io.bind_cpu_input(name, array)
        positions = np.maximum(self._mask_BK[:, :length].cumsum(axis=1) - 1, 0)
        return self._run(ids, positions)

    def step(self, tokens: Sequence[int]) -> LogitsBV:
        """Appends one token a row. Raises: see ``Engine``."""
        self._num_keys += 1
        positions = self._mask_BK[:, : self._num_keys].sum(axis=1, keepdims=True) - 1
        return self._run(np.asarray(tokens, np.int64)[:, None], positions)

    def close(self) -> None:
        """Releases session and cache."""
        self._io = None
        del self._session

    def _run(self, ids_BS: npt.NDArray[np.int64], positions_BS: npt.NDArray[np.int64]) -> LogitsBV:
        io = self._io
        io.bind_cpu_input("input_ids", ids_BS)
        io.bind_cpu_input("attention_mask", np.ascontiguousarray(self._mask_BK[:, : self._num_keys]))
        io.bind_cpu_input("position_ids", np.ascontiguousarray(positions_BS))
        for name in self._outputs:
            io.bind_output(name, "cpu" if name == "logits" else self._device)
        try:
            self._session.run_with_iobinding(io)
        except self._errors as error:
            raise_run_error(self.name, error)
        # A name bound again keeps the place it was first bound at.
        values = dict(zip(self._outputs, io.get_outputs(), strict=True))
        for block in range(self._config.n_layer):
            for part, name in zip(("key", "value"), present_names(block), strict=True):
                io.bind_ortvalue_input(f"past_key_values.{block}.{part}", values[name])
        logits_BSV: npt.NDArray[np.float32] = values["logits"].numpy()
        return logits_BSV[:, -1]
