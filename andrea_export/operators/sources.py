"""The plugin's C++ sources: where they are, which files make the library, their content hash, the default GPUs; and the
rows of the custom operators, read from ``plugins/*/op.json``.

CMake turns the same files into the C++ rows that the plugin is compiled with, so the two sides cannot disagree. Every
function raises PluginError where this installation carries no plugin sources.
"""

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from andrea_export.core.errors import PluginError

# What the compilers and CMake read. Prose, tests and a build folder left beside the sources make no library.
_SOURCE_SUFFIXES = frozenset({".h", ".cuh", ".in", ".cpp", ".cu", ".cmake", ".json", ".map", ".txt"})
_SHARED_FOLDERS = ("cmake", "common", "tensorrt")
CPU_FOLDERS = ("cmake", "cpu")
"""What the operators for onnxruntime's CPU provider are made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginFacts:
    """What the plugin library was compiled from, with what, and for which GPUs."""

    sources_sha256: str
    nvcc_version: str
    host_compiler: str
    architectures: tuple[str, ...]
    tensorrt_headers: str
    """``abi`` (this project's declarations) or the version of NVIDIA's headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuLibraryFacts:
    """What the operators for onnxruntime's CPU provider were compiled from, with what, and for which processors."""

    sources_sha256: str
    host_compiler: str
    machine: str
    """As ``platform.machine`` says it: ``x86_64``, ``aarch64``."""


def plugin_source_dir() -> Path:
    """The folder of the plugin's C++ sources: inside an installed wheel, or ``plugins/`` of a checkout.

    Raises: PluginError if this installation carries neither.
    """
    here = Path(__file__).resolve().parents[1]
    for folder in (here / "_plugin_sources", here.parent / "plugins"):
        if (folder / "CMakeLists.txt").is_file():
            return folder
    raise PluginError(
        f"the plugin's sources are not beside {here}",
        hint="reinstall andrea-export from its wheel, or install the checkout with `pip install -e .`",
    )


def operator_folders() -> tuple[Path, ...]:
    """The folder of each custom operator, sorted by name: a folder with an ``op.json`` is one, for CMake too."""
    return tuple(sorted(row.parent for row in plugin_source_dir().glob("*/op.json")))


def plugin_source_files(folders: Sequence[str] = ()) -> tuple[Path, ...]:
    """Every file a library is made of, sorted by its path relative to the source folder.

    ``folders``: those the library is made of, beside what lies at the root; left out, the TensorRT plugin's.
    """
    root = plugin_source_dir()
    candidates = [path for path in root.iterdir() if path.is_file()]
    own = (*(root / name for name in _SHARED_FOLDERS), *operator_folders())
    for folder in tuple(root / name for name in folders) or own:
        candidates += [path for path in folder.rglob("*") if path.is_file()]
    files = [path for path in candidates if path.suffix in _SOURCE_SUFFIXES]
    return tuple(sorted(files, key=lambda path: path.relative_to(root).as_posix()))


def plugin_sources_sha256(folders: Sequence[str] = ()) -> str:
    """The content hash of a library's sources: equal on every machine that has the same files."""
    root = plugin_source_dir()
    digest = hashlib.sha256()
    for path in plugin_source_files(folders):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def default_architectures() -> tuple[str, ...]:
    """The CUDA architectures of ``architectures.json``, in CMake's spelling (``90`` = machine code and PTX)."""
    listed = json.loads((plugin_source_dir() / "architectures.json").read_text())["cuda_architectures"]
    return tuple(str(architecture) for architecture in listed)


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomOp:
    """One custom operator: its ONNX identity and the TensorRT plugin that implements it."""

    op_type: str
    domain: str
    opset_version: int
    plugin_namespace: str
    plugin_version: str
    attributes: tuple[str, ...]
    storage_types: tuple[str, ...]
    function_body: str
    """One ONNX statement over input ``x`` and output ``y``, in onnx.parser's language."""

    @property
    def qualified_name(self) -> str:
        """``domain::op_type``, as ``torch.onnx.ops.symbolic`` wants it."""
        return f"{self.domain}::{self.op_type}"


def custom_ops() -> dict[str, CustomOp]:
    """The row of every custom operator by the name of its folder, in the order of the library's creators."""
    rows = {folder.name: json.loads((folder / "op.json").read_text()) for folder in operator_folders()}
    lists = ("attributes", "storage_types")
    return {name: CustomOp(**{**row, **{key: tuple(row[key]) for key in lists}}) for name, row in rows.items()}


@functools.cache
def andrea_gelu() -> CustomOp:
    """The row of ``com.andrea::AndreaGelu``, the tanh-form GELU."""
    return custom_ops()["gelu"]
