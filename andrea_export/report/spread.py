"""Where a layer's error sits: its largest along the token positions and along the channels, over every case."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea_export.report.schema import Spread

Float64s = npt.NDArray[np.float64]

# A report holds at most this many groups a layer, so that a heat map of 1,000 rows stays small.
MAX_POSITIONS, MAX_CHANNELS = 128, 64
_NUM_WORST_CHANNELS = 5


@dataclass(slots=True, kw_only=True)
class SpreadSums:
    """The largest errors seen so far; ``add`` is all that changes it.

    A case begins where the one before it ended (decode after prefill), and rows of a batch are padded apart: so errors
    are put where their tokens are in their own row, and of several the largest counts.
    """

    _cases: list[str] = field(default_factory=list)
    _by_position: Float64s = field(default_factory=lambda: np.empty(0))
    _by_channel: Float64s = field(default_factory=lambda: np.empty(0))

    def add(self, case: str, error: Float64s, positions_BK: npt.NDArray[Any]) -> None:
        """Adds one case: ``error`` ``[B, S, C]`` or, for caches and masks, ``[B, H, S, D]``, NaN as infinite.

        ``positions_BK`` are the positions of every token the case can see, the S of the layer last; −1 is padding,
        whose error belongs to no token and is left out of the positions.
        """
        if error.ndim == 3:
            by_token, by_channel = error.max(axis=2), error.max(axis=(0, 1))
        elif error.ndim == 4:
            by_token, by_channel = error.max(axis=(1, 3)), error.max(axis=(0, 2)).reshape(-1)
        else:
            return
        positions = positions_BK[:, positions_BK.shape[1] - by_token.shape[1] :]
        is_token = positions >= 0
        at_position = np.zeros(int(positions.max(initial=-1)) + 1)
        np.maximum.at(at_position, positions[is_token], by_token[is_token])
        self._cases.append(case)
        self._by_position = _larger(self._by_position, at_position)
        self._by_channel = _larger(self._by_channel, by_channel)

    def as_spread(self) -> Spread | None:
        """What a report holds of it; None where no case had these axes."""
        if not self._cases:
            return None
        worst = np.argsort(self._by_channel)[::-1][:_NUM_WORST_CHANNELS]
        positions = _group_size(self._by_position.size, MAX_POSITIONS)
        channels = _group_size(self._by_channel.size, MAX_CHANNELS)
        return Spread(
            cases=tuple(self._cases),
            positions_per_group=positions,
            by_position=_grouped(self._by_position, positions),
            channels_per_group=channels,
            by_channel=_grouped(self._by_channel, channels),
            worst_channels=tuple((int(channel), _short(self._by_channel[channel])) for channel in worst),
        )


def _larger(ours: Float64s, theirs: Float64s) -> Float64s:
    """The larger of each pair; where one ends, the other's."""
    long, short = (ours, theirs) if ours.size >= theirs.size else (theirs, ours)
    larger: Float64s = long.copy()
    np.maximum(larger[: short.size], short, out=larger[: short.size])
    return larger


def _group_size(size: int, limit: int) -> int:
    return max(1, math.ceil(size / limit))


def _grouped(values: Float64s, size: int) -> tuple[float, ...]:
    return tuple(_short(values[start : start + size].max()) for start in range(0, values.size, size))


def _short(value: Any) -> float:
    """Three significant digits: these figures are drawn, never judged."""
    return float(f"{float(value):.2e}")
