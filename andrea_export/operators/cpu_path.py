"""Which instructions the operators for the CPU take here: as their library says, and as Linux lets expect."""

import ctypes
import re
from pathlib import Path

from andrea_export.core.errors import PluginError

# In the order of ``plugins/cmake/CpuPaths.cmake``: a path, and the flags of /proc/cpuinfo that it needs.
_PATHS = {
    "avx512-vnni": {"avx512f", "avx512bw", "avx512vl", "avx512_vnni"},
    "avx-vnni": {"avx2", "fma", "avx_vnni"},
    "avx2": {"avx2", "fma"},
    "dot-product": {"asimddp"},
}


def expected_path(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The path that a library compiled for this processor takes here; loads none. ``portable`` if nothing is known."""
    try:
        found = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE)
    except OSError:
        found = None
    flags = set(found[1].split()) if found else set()
    return next((name for name, needed in _PATHS.items() if needed <= flags), "portable")


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
