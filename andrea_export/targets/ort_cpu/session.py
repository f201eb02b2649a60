"""A graph with a shared cache behind the canonical interface, so that it is compared on the same inputs as all others.

Owns the translation: left-padded rows with an attention mask in, rows without padding through the graph one by one,
and everything back to where the canonical graph would have it. Slow, and meant for proofs; ``runtime`` generates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea_export.core.names import KEEP, SEQLENS, TOTAL, present_names
from andrea_export.sessions.base import Feeds
from andrea_export.sessions.onnxruntime import CPU_TUNING, OnnxSession
from andrea_model.config import AndreaConfig

Arrays = dict[str, npt.NDArray[Any]]


class OrtCpuSession:
    """Runs one ``ort-cpu`` graph on canonical inputs; with ``taps``, those layers are returned too.

    A padded token sees nothing but itself at position 0, in the reference as here, so it is run as a row of its own.
    ``library``: what has the graph's operators; None: its functions run. Raises: BackendUnavailable, RunError.
    """

    def __init__(
        self, model: Path, config: AndreaConfig, *, taps: Sequence[str] = (), name: str, library: Path | None
    ) -> None:
        self.name = name
        self.config = config
        tuning = replace(CPU_TUNING, operators=library)
        self._session = OnnxSession(model, taps=taps, name=name, tuning=tuning)
        self.output_names = self._session.output_names
        self._cache_dtype = self._session.input_dtype("past_key_values.0.key")

    def run(self, feeds: Feeds) -> Arrays:
        """Every output and tap, as the canonical graph gives them. Raises: RunError."""
        ids, mask, positions = feeds["input_ids"], feeds["attention_mask"], feeds["position_ids"]
        num_rows, num_new = ids.shape
        num_past = mask.shape[1] - num_new
        found: Arrays = {}
        for row in range(num_rows):
            padded = int((mask[row] == 0).sum())
            padded_past, padded_new = min(padded, num_past), max(0, padded - num_past)
            for place in range(padded_new):
                one = self._run_row(ids[row, place : place + 1], positions[row, place : place + 1], {})
                self._put(found, one, feeds, row=row, at_token=place, at_key=num_past + place)
            past = {
                name: feeds[name][row : row + 1, :, padded_past:]
                for name in feeds
                if name.startswith("past_key_values.")
            }
            one = self._run_row(ids[row, padded_new:], positions[row, padded_new:], past)
            self._put(found, one, feeds, row=row, at_token=padded_new, at_key=padded)
            for block in range(self.config.n_layer):
                for part, name in zip(("key", "value"), present_names(block), strict=True):
                    found[name][row, :, :padded_past] = feeds[f"past_key_values.{block}.{part}"][row, :, :padded_past]
        return found

    def close(self) -> None:
        """Releases the session."""
        self._session.close()

    def __enter__(self) -> OrtCpuSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run_row(self, ids_S: npt.NDArray[Any], positions_S: npt.NDArray[Any], past: Arrays) -> Arrays:
        """One row without padding: its tokens after its past."""
        config, num_new = self.config, len(ids_S)
        num_past = next(iter(past.values())).shape[2] if past else 0
        total = num_past + num_new
        feeds: Arrays = {
            "input_ids": ids_S[None],
            "position_ids": positions_S[None],
            SEQLENS: np.array([total - 1], np.int32),
            TOTAL: np.array([total], np.int32),
            KEEP: np.array([num_new], np.int64),
        }
        for block in range(config.n_layer):
            for part in ("key", "value"):
                name = f"past_key_values.{block}.{part}"
                buffer = np.zeros((1, config.n_head, total, config.d_head), self._cache_dtype)
                if num_past:
                    buffer[:, :, :num_past] = past[name]
                feeds[name] = buffer
        return self._session.run(feeds)

    def _put(self, found: Arrays, one: Arrays, feeds: Feeds, *, row: int, at_token: int, at_key: int) -> None:
        """Copies one row's results to their place; cache entries by key position, all else by token position."""
        num_rows, num_new = feeds["input_ids"].shape
        num_keys = feeds["attention_mask"].shape[1]
        for name, array in one.items():
            if name.startswith("present."):
                _, heads, total, width = array.shape
                whole = found.setdefault(name, np.zeros((num_rows, heads, num_keys, width), np.float32))
                whole[row, :, at_key : at_key + total] = array[0]
            else:
                whole = found.setdefault(name, np.zeros((num_rows, num_new, *array.shape[2:]), array.dtype))
                whole[row, at_token : at_token + array.shape[1]] = array[0]
