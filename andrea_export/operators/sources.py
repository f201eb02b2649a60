"""Which files make the plugin library, their content hash, and the default CUDA architectures."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from andrea_export.operators.rows import plugin_source_dir

# What the compilers and CMake read. Prose, tests and a build folder left beside the sources make no library.
_SOURCE_SUFFIXES = frozenset({".h", ".in", ".cpp", ".cu", ".cmake", ".json", ".map", ".txt"})
_SOURCE_FOLDERS = ("abi", "cmake", "common", "gelu")


def plugin_source_files() -> tuple[Path, ...]:
    """Every file the library is made of, sorted by its path relative to the source folder.

    Raises: PluginError if this installation carries no plugin sources.
    """
    root = plugin_source_dir()
    candidates = [path for path in root.iterdir() if path.is_file()]
    for folder in _SOURCE_FOLDERS:
        candidates += [path for path in (root / folder).rglob("*") if path.is_file()]
    files = [path for path in candidates if path.suffix in _SOURCE_SUFFIXES]
    return tuple(sorted(files, key=lambda path: path.relative_to(root).as_posix()))


def plugin_sources_sha256() -> str:
    """The content hash of the plugin's sources: equal on every machine that has the same files.

    Raises: PluginError if this installation carries no plugin sources.
    """
    root = plugin_source_dir()
    digest = hashlib.sha256()
    for path in plugin_source_files():
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def default_architectures() -> tuple[str, ...]:
    """The CUDA architectures of ``architectures.json``, in CMake's spelling (``90`` = machine code and PTX).

    Raises: PluginError if this installation carries no plugin sources.
    """
    listed = json.loads((plugin_source_dir() / "architectures.json").read_text())["cuda_architectures"]
    return tuple(str(architecture) for architecture in listed)
