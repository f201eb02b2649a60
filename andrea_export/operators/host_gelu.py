"""The plugin's GELU on this machine's CPU: g++'s build of the kernel's own maths, called through ctypes."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from andrea_export.core.errors import PluginError

_SYMBOLS = {"fp32": "andrea_gelu_fp32", "fp16": "andrea_gelu_fp16", "bf16": "andrea_gelu_bf16"}
# numpy's name of each storage type's dtype. numpy has no bfloat16 of its own: ml_dtypes registers one, and
# the bits may come as uint16.
_DTYPE_NAMES = {"fp32": ("float32",), "fp16": ("float16",), "bf16": ("bfloat16", "uint16")}


class HostGelu:
    """GELU over arrays with the plugin's arithmetic, in each of its storage types."""

    def __init__(self, library: Path) -> None:
        """Loads `library`, which build_host_library made. Raises: PluginError if it cannot be loaded."""
        self.library = library
        try:
            loaded = ctypes.CDLL(str(library))
            self._functions = {storage: getattr(loaded, symbol) for storage, symbol in _SYMBOLS.items()}
        except (OSError, AttributeError) as error:
            raise PluginError(
                f"the host library {library} cannot be loaded: {error}",
                hint="remove it: the next build makes it again",
            ) from error
        for storage, function in self._functions.items():
            model = [] if storage == "fp32" else [ctypes.c_double, ctypes.c_double]
            function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, *model]
            function.restype = None

    def apply(
        self,
        array: NDArray[np.generic],
        storage: str,
        *,
        exp2_relative_error: float = 0.0,
        reciprocal_relative_error: float = 0.0,
    ) -> NDArray[np.generic]:
        """GELU of each element, in a new array of the same shape and dtype.

        `storage` is ``fp32`` (float32), ``fp16`` (float16) or ``bf16`` (ml_dtypes' bfloat16, or the bits as
        uint16). The 16-bit types use two approximate instructions on the device; here they are exact, times
        one plus the given relative errors. fp32 uses none and takes no such errors: the device gives the same
        bits.

        Raises: PluginError for another storage type or dtype.
        """
        if storage not in self._functions:
            raise PluginError(f"storage type {storage!r}: expected one of {', '.join(self._functions)}")
        if array.dtype.name not in _DTYPE_NAMES[storage]:
            raise PluginError(
                f"GELU in {storage}: expected an array of {' or '.join(_DTYPE_NAMES[storage])}, "
                f"found {array.dtype.name}"
            )
        if storage == "fp32" and (exp2_relative_error or reciprocal_relative_error):
            raise PluginError("fp32 uses no approximate instruction, so it has no modelled error")
        source = np.ascontiguousarray(array)
        result = np.empty_like(source)
        model = () if storage == "fp32" else (exp2_relative_error, reciprocal_relative_error)
        self._functions[storage](source.ctypes.data, result.ctypes.data, source.size, *model)
        return result.reshape(array.shape)
