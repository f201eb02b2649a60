"""Prompts from text that the trained fixture has not seen."""

from __future__ import annotations

import numpy as np

from support.paths import FIXTURES


def held_out_prompts(number: int, longest: int) -> list[list[int]]:
    """Byte tokens of held-out text, from all over it, of 1 to ``longest`` tokens."""
    content = (FIXTURES / "austen_held_out.txt").read_bytes()
    starts = np.linspace(0, len(content) - longest, number).astype(int)
    lengths = np.linspace(1, longest, number).astype(int)
    return [list(content[start : start + length]) for start, length in zip(starts, lengths, strict=True)]
