"""Memory that is zero and not there yet: a page costs nothing until something is written to it."""

from __future__ import annotations

import math
import mmap
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt


def zero_pages(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Zeros in pages of their own, mapped from the system and given back with the array.

    numpy's zeros are such pages only as long as malloc maps blocks of that size. Once it has freed a large one, it
    takes them from its heap: there they are written at once, and stay. Huge pages are declined, for the first word in
    one would bring 2 MiB. Raises: MemoryError.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    try:
        pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{num_bytes:,} bytes: {getattr(error, 'strerror', None) or error}") from None
    with suppress(OSError):  # a kernel without huge pages has none to decline
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, dtype).reshape(shape)
