"""Finds the programs that build the plugin, and says in one line each what is missing and what brings it."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from andrea_export.core.errors import BackendUnavailable
from andrea_export.core.installed import installed_version

PLUGIN_EXTRA = "pip install 'andrea-export[plugin]'"
_INSTALL_GXX = "apt-get install g++"
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
    path: Path | None
    version: str | None
    needed_for: str
    hint: str | None


def find_gxx() -> Tool:
    """The C++ compiler. Raises: BackendUnavailable."""
    return _find("g++", None, hint=_INSTALL_GXX)


def find_cmake() -> Tool:
    """CMake, the environment's own before PATH's. Raises: BackendUnavailable."""
    return _find("cmake", _environment_script("cmake"), hint=PLUGIN_EXTRA)


def find_ninja() -> Tool:
    """Ninja, the environment's own before PATH's. Raises: BackendUnavailable."""
    return _find("ninja", _environment_script("ninja"), hint=PLUGIN_EXTRA)


def find_host_tools() -> HostTools:
    """The C++ compiler, CMake and Ninja. Raises: BackendUnavailable for the first that is missing."""
    return HostTools(gxx=find_gxx(), cmake=find_cmake(), ninja=find_ninja())


def find_cuda_toolkit(toolkit_root: Path | None = None) -> CudaToolkit:
    """The CUDA compiler: of the PyPI wheels, else of `toolkit_root`, else on PATH, else of /usr/local/cuda.

    `toolkit_root` is a toolkit's folder, or an nvcc itself (the meaning of CUDA_HOME, or of CUDACXX).
    Raises: BackendUnavailable.
    """
    wheels = _wheel_toolkit_root()
    if wheels is not None:
        tool = _probe("nvcc", wheels / "bin" / "nvcc")
        if tool is not None:
            return CudaToolkit(nvcc=tool, root=wheels, library_folder=wheels / "lib")
    candidates: list[Path] = []
    if toolkit_root is not None:
        candidates.append(toolkit_root if toolkit_root.is_file() else toolkit_root / "bin" / "nvcc")
    on_path = shutil.which("nvcc")
    if on_path is not None:
        candidates.append(Path(on_path))
    candidates.append(_USUAL_TOOLKIT / "bin" / "nvcc")
    for candidate in candidates:
        tool = _probe("nvcc", candidate)
        if tool is not None:
            return CudaToolkit(nvcc=tool, root=_root_from_nvcc(candidate), library_folder=None)
    looked = f" (looked in the Python environment, {', '.join(str(path.parent) for path in candidates)})"
    raise BackendUnavailable(f"no working CUDA compiler (nvcc) was found{looked}", hint=PLUGIN_EXTRA)


def compiler_status(*, toolkit_root: Path | None = None) -> tuple[ToolStatus, ...]:
    """One row for each tool a plugin build needs, found or not; never raises for a missing one."""
    both = "the plugin library and the plugin's maths on the host"
    return (
        _status("g++", both, find_gxx),
        _status("cmake", both, find_cmake),
        _status("ninja", both, find_ninja),
        _status("nvcc", "the plugin library", lambda: find_cuda_toolkit(toolkit_root).nvcc),
    )


def _status(name: str, needed_for: str, find: Callable[[], Tool]) -> ToolStatus:
    try:
        tool = find()
    except BackendUnavailable as missing:
        return ToolStatus(name=name, found=False, path=None, version=None, needed_for=needed_for, hint=missing.hint)
    return ToolStatus(name=name, found=True, path=tool.path, version=tool.version, needed_for=needed_for, hint=None)


def compute_capabilities(toolkit: CudaToolkit) -> frozenset[str]:
    """The architectures this nvcc can compile for, as ``80``, ``90``, …; empty if it cannot say."""
    answer = _run(toolkit.nvcc.path, "--list-gpu-arch")
    return frozenset(re.findall(r"compute_(\w+)", answer or ""))


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


def _find(name: str, first: Path | None, *, hint: str) -> Tool:
    on_path = shutil.which(name)
    for candidate in (first, None if on_path is None else Path(on_path)):
        if candidate is not None:
            tool = _probe(name, candidate)
            if tool is not None:
                return tool
    raise BackendUnavailable(f"{name} was not found, or does not run", hint=hint)


def _probe(name: str, path: Path) -> Tool | None:
    """The tool at `path` if it runs and answers ``--version``."""
    answer = _run(path, "--version")
    if answer is None:
        return None
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    if not lines:
        return None
    # nvcc's last line names the exact build; the others begin with name and version.
    return Tool(name=name, path=path, version=lines[-1] if name == "nvcc" else lines[0])


def _run(path: Path, argument: str) -> str | None:
    try:
        finished = subprocess.run(
            [str(path), argument], capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return finished.stdout if finished.returncode == 0 else None


def _environment_script(name: str) -> Path:
    return Path(sysconfig.get_path("scripts")) / name


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
    try:
        dry_run = subprocess.run(
            [str(nvcc), "--dryrun", "-E", "-x", "cu", "/dev/null"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return nvcc.resolve().parent.parent
    top = re.search(r"^#\$ TOP=(.+)$", dry_run.stderr, re.MULTILINE)
    return Path(top.group(1)).resolve() if top else nvcc.resolve().parent.parent
