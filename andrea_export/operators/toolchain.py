"""Finds the programs that build the plugin, says in one line each what is missing and what brings it; and what of this
process's environment they are started with.

A cached library is found by what was asked for, so a shell's flags must not be in it.
"""

import hashlib
import importlib.util
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from andrea_export.core.errors import BackendUnavailable
from andrea_export.core.installed import installed_version

PLUGIN_EXTRA = "pip install 'andrea-export[plugin]'"
# Where NVIDIA's installers put a toolkit when nothing else says where it is (JetPack leaves it off PATH).
_USUAL_TOOLKIT = Path("/usr/local/cuda")
# The wheels that are a toolkit together: the compiler's parts, the static runtime and the headers.
_TOOLKIT_WHEELS = ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-runtime", "nvidia-cuda-cccl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A program that was found, and what it says its version is."""

    name: str
    path: Path
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTools:
    """What every build needs."""

    gxx: Tool
    cmake: Tool
    ninja: Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaToolkit:
    """An nvcc and the folder whose ``include`` and libraries belong to it."""

    nvcc: Tool
    root: Path
    library_folder: Path | None
    """Where the static CUDA runtime lies, if nvcc does not know it by itself (the PyPI wheels)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStatus:
    """One row of ``doctor``: a tool that is here (``version``, ``path``), or what brings it (``hint``)."""

    name: str
    found: bool
    path: Path | None = None
    version: str | None = None
    hint: str | None = None


def find_gxx() -> Tool:
    """The C++ compiler. Raises: BackendUnavailable."""
    return _find("g++", hint="apt-get install g++")


def find_cmake() -> Tool:
    """CMake, the environment's own before PATH's. Raises: BackendUnavailable."""
    return _find("cmake", hint=PLUGIN_EXTRA)


def find_ninja() -> Tool:
    """Ninja, the environment's own before PATH's. Raises: BackendUnavailable."""
    return _find("ninja", hint=PLUGIN_EXTRA)


def find_host_tools() -> HostTools:
    """The C++ compiler, CMake and Ninja. Raises: BackendUnavailable for the first that is missing."""
    return HostTools(gxx=find_gxx(), cmake=find_cmake(), ninja=find_ninja())


def find_cuda_toolkit(toolkit_root: Path | None = None) -> CudaToolkit:
    """The CUDA compiler: of the PyPI wheels, else of `toolkit_root`, else on PATH, else of /usr/local/cuda.

    `toolkit_root` is a toolkit's folder, or an nvcc itself (the meaning of CUDA_HOME, or of CUDACXX).
    Raises: BackendUnavailable.
    """
    wheels = _wheel_toolkit_root()
    if wheels is not None and (tool := _probe("nvcc", wheels / "bin" / "nvcc")) is not None:
        return CudaToolkit(nvcc=tool, root=wheels, library_folder=wheels / "lib")
    candidates: list[Path] = []
    if toolkit_root is not None:
        candidates.append(toolkit_root if toolkit_root.is_file() else toolkit_root / "bin" / "nvcc")
    if (on_path := shutil.which("nvcc")) is not None:
        candidates.append(Path(on_path))
    candidates.append(_USUAL_TOOLKIT / "bin" / "nvcc")
    for candidate in candidates:
        if (tool := _probe("nvcc", candidate)) is not None:
            return CudaToolkit(nvcc=tool, root=_root_from_nvcc(candidate), library_folder=None)
    looked = f" (looked in the Python environment, {', '.join(str(path.parent) for path in candidates)})"
    raise BackendUnavailable(f"no working CUDA compiler (nvcc) was found{looked}", hint=PLUGIN_EXTRA)


def compiler_status(*, toolkit_root: Path | None = None) -> tuple[ToolStatus, ...]:
    """One row for each tool a plugin build needs, found or not; never raises for a missing one."""

    def nvcc() -> Tool:
        return find_cuda_toolkit(toolkit_root).nvcc

    tools: dict[str, Callable[[], Tool]] = {"g++": find_gxx, "cmake": find_cmake, "ninja": find_ninja, "nvcc": nvcc}
    found = []
    for name, find in tools.items():
        try:
            tool = find()
            found.append(ToolStatus(name=name, found=True, path=tool.path, version=tool.version))
        except BackendUnavailable as missing:
            found.append(ToolStatus(name=name, found=False, hint=missing.hint))
    return tuple(found)


def compute_capabilities(toolkit: CudaToolkit) -> frozenset[str]:
    """The architectures this nvcc can compile for, as ``80``, ``90``, …; empty if it cannot say."""
    answer = _run(toolkit.nvcc.path, "--list-gpu-arch")
    known = answer.stdout if answer is not None and answer.returncode == 0 else ""
    return frozenset(re.findall(r"compute_(\w+)", known))


def toolkit_parts(toolkit: CudaToolkit) -> str:
    """What the toolkit is put together from, for a cache key: its parts change without nvcc's version changing.

    The wheels' versions; of an installed toolkit the hash of its ``version.json``, or ``not stated``.
    """
    if toolkit.library_folder is not None:
        return " ".join(f"{name}=={installed_version(name) or 'none'}" for name in _TOOLKIT_WHEELS)
    try:
        return hashlib.sha256((toolkit.root / "version.json").read_bytes()).hexdigest()
    except OSError:
        return "not stated"


def _find(name: str, *, hint: str) -> Tool:
    first = Path(sysconfig.get_path("scripts")) / name if hint == PLUGIN_EXTRA else None  # of the environment itself
    for candidate in (first, shutil.which(name)):
        if candidate is not None and (tool := _probe(name, Path(candidate))) is not None:
            return tool
    raise BackendUnavailable(f"{name} was not found, or does not run", hint=hint)


def _probe(name: str, path: Path) -> Tool | None:
    """The tool at `path` if it runs and answers ``--version``."""
    answer = _run(path, "--version")
    lines = [line.strip() for line in answer.stdout.splitlines() if line.strip()] if answer is not None else []
    if answer is None or answer.returncode != 0 or not lines:
        return None
    # nvcc's last line names the exact build; the others begin with name and version.
    return Tool(name=name, path=path, version=lines[-1] if name == "nvcc" else lines[0])


def _run(path: Path, *arguments: str) -> subprocess.CompletedProcess[str] | None:
    """What a program answers; None where it cannot be run, or does not end."""
    try:
        return subprocess.run(
            [str(path), *arguments], capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def _wheel_toolkit_root() -> Path | None:
    """``site-packages/nvidia/cu13``, where the five nvcc wheels meet."""
    try:
        spec = importlib.util.find_spec("nvidia.cu13")
    except ModuleNotFoundError:
        return None
    if spec is None or spec.submodule_search_locations is None:
        return None
    for folder in spec.submodule_search_locations:
        if (Path(folder) / "bin" / "nvcc").is_file():
            return Path(folder)
    return None


def _root_from_nvcc(nvcc: Path) -> Path:
    """The toolkit folder of an nvcc that may be a wrapper script elsewhere: what nvcc itself calls TOP."""
    dry_run = _run(nvcc, "--dryrun", "-E", "-x", "cu", "/dev/null")
    top = re.search(r"^#\$ TOP=(.+)$", dry_run.stderr, re.MULTILINE) if dry_run is not None else None
    return Path(top.group(1)).resolve() if top else nvcc.resolve().parent.parent


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
