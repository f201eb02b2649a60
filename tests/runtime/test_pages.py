"""Memory for caches: there as far as it is used, and gone with the array."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from andrea_export.runtime.pages import zero_pages

NUM_BYTES = 16 << 20  # what malloc would take from its heap, once it has freed as much


def in_memory() -> int:
    """Bytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE


def test_only_what_is_written_takes_memory_and_it_is_given_back() -> None:
    np.empty(NUM_BYTES, np.uint8).fill(1)
    before = in_memory()
    array = zero_pages((4, NUM_BYTES // 4), np.dtype(np.uint8))
    assert in_memory() - before < NUM_BYTES // 16
    array[0] = 7
    assert NUM_BYTES // 4 <= in_memory() - before < NUM_BYTES // 2
    assert array[0, -1] == 7 and not array[1, :100].any()
    view = array[1]
    del array
    view[0] = 1  # a part keeps the whole
    del view
    assert in_memory() - before < NUM_BYTES // 16


def test_more_than_there_is() -> None:
    with pytest.raises(MemoryError, match="bytes: Cannot allocate memory"):
        zero_pages((1 << 60,), np.dtype(np.uint8))
    with pytest.raises(MemoryError):
        zero_pages((1 << 62,), np.dtype(np.float32))
