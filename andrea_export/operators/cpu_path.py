"""Which instructions a library of operators for the CPU takes on this processor; loading it is what finds out."""

import ctypes
from pathlib import Path

from andrea_export.core.errors import PluginError


def cpu_path(library: Path) -> str:
    """The name of the path: ``avx2`` for example. Raises: PluginError if the library cannot be loaded here."""
    try:
        function = ctypes.CDLL(str(library.resolve())).andrea_cpu_path
    except (OSError, AttributeError) as error:
        raise PluginError(
            f"{library} cannot be loaded: {error}", hint="build the bundle on a machine of this kind"
        ) from error
    function.restype = ctypes.c_char_p
    name: bytes = function()
    return name.decode()
