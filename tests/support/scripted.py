"""A session without a model, for tests: it gives the logits it was told to give, and remembers what it was fed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from andrea_export.core.names import present_names
from andrea_export.sessions.base import Feeds, Session
from andrea_model.config import AndreaConfig


class ScriptedSession(Session):
    """The n-th run gives the n-th of ``logits_V`` at every position, over a cache of zeros."""

    name = "scripted"
    output_names: tuple[str, ...] = ("logits",)

    def __init__(self, config: AndreaConfig, *logits_V: list[float]) -> None:
        self.fed: list[Feeds] = []
        self._config = config
        self._logits = list(logits_V)

    def run(self, feeds: Feeds) -> dict[str, npt.NDArray[Any]]:
        """The next logits ``[1, S, V]`` and every present key and value ``[1, H, T, D]``."""
        self.fed.append(dict(feeds))
        config, logits = self._config, np.array(self._logits.pop(0), np.float32)
        cache = np.zeros((1, config.n_head, feeds["attention_mask"].shape[1], config.d_head), np.float32)
        present = {name: cache for block in range(config.n_layer) for name in present_names(block)}
        return {"logits": np.broadcast_to(logits, (1, feeds["input_ids"].shape[1], logits.size)), **present}

    def close(self) -> None:
        """Holds nothing."""
