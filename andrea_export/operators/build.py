"""Builds the two libraries with CMake: what is asked for, and under which identity it is cached.

The cache itself is in cache.py.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from andrea_export.core.errors import PluginError
from andrea_export.operators.cache import CmakeBuild, cached_build
from andrea_export.operators.host_gelu import HostGelu
from andrea_export.operators.rows import plugin_source_dir
from andrea_export.operators.sources import default_architectures, plugin_sources_sha256
from andrea_export.operators.toolchain import (
    compute_capabilities,
    find_cmake,
    find_cuda_toolkit,
    find_gxx,
    find_ninja,
    toolkit_parts,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginBuild:
    """A built plugin library and everything that had a say in it."""

    library: Path
    library_sha256: str
    key: str
    sources_sha256: str
    nvcc_version: str
    host_compiler: str
    architectures: tuple[str, ...]
    tensorrt_headers: str
    """``abi`` (this project's own declarations), or the version of NVIDIA's headers."""
    reused: bool


def build_plugin_library(
    cache_dir: Path,
    *,
    architectures: tuple[str, ...] | None = None,
    tensorrt_root: Path | None = None,
    toolkit_root: Path | None = None,
    on_line: Callable[[str], None] | None = None,
) -> PluginBuild:
    """The plugin library for `architectures`, built now or taken from the cache, and whole in either case.

    `architectures` are CMake's (``("80-real", "90")``), default: those of ``architectures.json``.
    `tensorrt_root` names NVIDIA's headers instead of this project's own. `toolkit_root` is a CUDA toolkit's
    folder or an nvcc, used where the environment has no nvcc wheels. `on_line` gets each line CMake and the
    compilers print.

    Raises: BackendUnavailable if a compiler is missing; PluginError if an architecture is unknown to it, the
    headers are not there, or the sources do not compile.
    """
    gxx, cmake, ninja = find_gxx(), find_cmake(), find_ninja()
    toolkit = find_cuda_toolkit(toolkit_root)
    wanted = default_architectures() if architectures is None else architectures
    known = compute_capabilities(toolkit)
    unknown = [name for name in wanted if known and name.split("-")[0] not in known]
    if not wanted or unknown:
        raise PluginError(
            f"{toolkit.nvcc.path} ({toolkit.nvcc.version}) cannot compile for "
            f"{', '.join(unknown) if unknown else 'an empty list of architectures'}; "
            f"it knows {', '.join(sorted(known, key=_numeric))}",
            hint="name architectures that this nvcc knows, or install a newer one: it serves older GPUs too",
        )
    headers = _tensorrt_headers(tensorrt_root)
    sources = plugin_sources_sha256()
    identity = {
        "architectures": " ".join(wanted),
        "cmake": cmake.version,
        "host_compiler": gxx.version,
        "library": "andrea_plugins",
        "machine": platform.machine(),
        "nvcc": toolkit.nvcc.version,
        "sources_sha256": sources,
        "tensorrt_headers": headers.identity,
        "toolkit_parts": toolkit_parts(toolkit),
    }
    definitions = {
        "CMAKE_CXX_COMPILER": str(gxx.path),
        "CMAKE_CUDA_COMPILER": str(toolkit.nvcc.path),
        "CMAKE_CUDA_HOST_COMPILER": str(gxx.path),
        "CMAKE_CUDA_ARCHITECTURES": ";".join(wanted),
        "TENSORRT_ROOT": "" if tensorrt_root is None else str(tensorrt_root.resolve()),
    }
    if toolkit.library_folder is not None:
        definitions["CMAKE_CUDA_FLAGS"] = f'-L"{toolkit.library_folder}"'
    built = cached_build(
        cache_dir,
        CmakeBuild(
            source_dir=plugin_source_dir(),
            target="andrea_plugins",
            cmake=cmake.path,
            ninja=ninja.path,
            definitions=definitions,
            identity=identity,
        ),
        on_line=on_line,
    )
    return PluginBuild(
        library=built.library,
        library_sha256=built.library_sha256,
        key=built.key,
        sources_sha256=sources,
        nvcc_version=toolkit.nvcc.version,
        host_compiler=gxx.version,
        architectures=wanted,
        tensorrt_headers=headers.label,
        reused=built.reused,
    )


def build_host_library(cache_dir: Path, *, on_line: Callable[[str], None] | None = None) -> HostGelu:
    """The plugin's maths compiled for this machine's CPU, built now or taken from the cache. Needs no CUDA.

    Raises: BackendUnavailable if g++, cmake or ninja is missing; PluginError if the sources do not compile.
    """
    gxx, cmake, ninja = find_gxx(), find_cmake(), find_ninja()
    built = cached_build(
        cache_dir,
        CmakeBuild(
            source_dir=plugin_source_dir(),
            target="andrea_gelu_host",
            cmake=cmake.path,
            ninja=ninja.path,
            definitions={"ANDREA_HOST_ONLY": "ON", "CMAKE_CXX_COMPILER": str(gxx.path)},
            identity={
                "cmake": cmake.version,
                "host_compiler": gxx.version,
                "library": "andrea_gelu_host",
                "machine": platform.machine(),
                "sources_sha256": plugin_sources_sha256(),
            },
        ),
        on_line=on_line,
    )
    return HostGelu(built.library)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Headers:
    label: str
    identity: str


def _tensorrt_headers(tensorrt_root: Path | None) -> _Headers:
    """Which headers a build uses: for people (`label`), and for the cache's key (`identity`: their content)."""
    if tensorrt_root is None:
        return _Headers(label="abi", identity="abi")
    candidates = [
        tensorrt_root / "include",
        tensorrt_root,
        *sorted(tensorrt_root.glob("include/*-linux-gnu")),
    ]
    folder = next((path for path in candidates if (path / "NvInferRuntime.h").is_file()), None)
    if folder is None:
        raise PluginError(
            f"{tensorrt_root}: expected TensorRT's headers, found no include/NvInferRuntime.h",
            hint="name the folder of an unpacked TensorRT release, or leave TENSORRT_ROOT out",
        )
    digest = hashlib.sha256()
    for header in sorted(folder.glob("NvInfer*.h")):
        digest.update(header.read_bytes())
    version_header = folder / "NvInferVersion.h"
    text = version_header.read_text(errors="replace") if version_header.is_file() else ""
    define = r"^#define (?:NV_TENSORRT|TRT)_(MAJOR|MINOR|PATCH)(?:_ENTERPRISE)? (\d+)"
    numbers = dict(re.findall(define, text, re.MULTILINE))
    version = ".".join(numbers.get(part, "?") for part in ("MAJOR", "MINOR", "PATCH"))
    label = f"NVIDIA {version}"
    return _Headers(label=label, identity=json.dumps([label, digest.hexdigest()]))


def _numeric(architecture: str) -> tuple[int, str]:
    digits = re.match(r"\d+", architecture)
    return (int(digits.group()) if digits else 0, architecture)
