"""What of this process's environment the compilers are started with: nothing that adds to what they are told to build.

A cached library is found by what was asked for, so a shell's flags must not be in it.
"""

from __future__ import annotations

from collections.abc import Mapping

# CMake's own variables, and nvcc's.
_PREFIXES = ("CMAKE_", "NVCC_")
# CXXFLAGS, LDFLAGS, CUDAFLAGS, … for CMake; PTXAS_FLAGS, CUDAFE_FLAGS, NVLINK_FLAGS, NVVM_FLAGS, … for nvcc, which
# appends each to its tool's command line, as no manual says. No tool needs one to run.
_SUFFIX = "FLAGS"
_NAMES = frozenset(
    {
        "CICC_PATH",
        "COMPILER_PATH",
        "CPATH",
        "CPLUS_INCLUDE_PATH",
        "CUDAARCHS",
        "CUDACXX",
        "CUDAHOSTCXX",
        "CXX",
        "GCC_EXEC_PREFIX",
        "LD_RUN_PATH",
        "LIBRARY_PATH",
        "NVVMIR_LIBRARY_DIR",
        # nvcc.profile adds the toolkit's folders to what these hold.
        "INCLUDES",
        "LIBRARIES",
        "SYSTEM_INCLUDES",
    }
)


def compilers_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """`variables` without what CMake, nvcc, g++ and the linker would build otherwise by, and with messages in English.

    PATH and LD_LIBRARY_PATH stay: the tools are found and started by them.
    """
    kept = {
        name: value
        for name, value in variables.items()
        if name not in _NAMES and not name.startswith(_PREFIXES) and not name.endswith(_SUFFIX)
    }
    # The first error line is read from the output, so the tools must speak the language it is looked for in.
    return {**kept, "LC_ALL": "C"}
