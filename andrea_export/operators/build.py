"""Builds the libraries with CMake: what is asked for, with which headers, and under which identity it is cached.

The cache itself is in cache.py. g++ alone builds two of them: the kernel's own maths for this machine's CPU, called
through ctypes, and the operators for onnxruntime's CPU provider.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from andrea_export.core.errors import PluginError
from andrea_export.operators.cache import CachedLibrary, CmakeBuild, cached_build
from andrea_export.operators.sources import (
    CPU_FOLDERS,
    CpuLibraryFacts,
    PluginFacts,
    default_architectures,
    plugin_source_dir,
    plugin_sources_sha256,
)
from andrea_export.operators.toolchain import (
    CudaToolkit,
    HostTools,
    compute_capabilities,
    find_cuda_toolkit,
    find_host_tools,
    toolkit_parts,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginBuild(CachedLibrary):
    """A built plugin library and everything that had a say in it."""

    facts: PluginFacts


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
    tools = find_host_tools()
    toolkit = find_cuda_toolkit(toolkit_root)
    wanted = default_architectures() if architectures is None else architectures
    _check_architectures(toolkit, wanted)
    headers, headers_identity = tensorrt_headers(tensorrt_root)
    definitions = {
        "CMAKE_CUDA_COMPILER": str(toolkit.nvcc.path),
        "CMAKE_CUDA_HOST_COMPILER": str(tools.gxx.path),
        "CMAKE_CUDA_ARCHITECTURES": ";".join(wanted),
        "TENSORRT_ROOT": "" if tensorrt_root is None else str(tensorrt_root.resolve()),
    }
    if toolkit.library_folder is not None:
        definitions["CMAKE_CUDA_FLAGS"] = f'-L"{toolkit.library_folder}"'
    identity = {
        "architectures": " ".join(wanted),
        "nvcc": toolkit.nvcc.version,
        "tensorrt_headers": headers_identity,
        "toolkit_parts": toolkit_parts(toolkit),
    }
    build = _cmake_build("andrea_plugins", tools, definitions=definitions, identity=identity)
    built = cached_build(cache_dir, build, on_line=on_line)
    return PluginBuild(
        library=built.library,
        library_sha256=built.library_sha256,
        key=built.key,
        facts=PluginFacts(
            sources_sha256=build.identity["sources_sha256"],
            nvcc_version=toolkit.nvcc.version,
            host_compiler=tools.gxx.version,
            architectures=wanted,
            tensorrt_headers=headers,
        ),
        reused=built.reused,
    )


def build_host_library(cache_dir: Path, *, on_line: Callable[[str], None] | None = None) -> HostGelu:
    """The plugin's maths compiled for this machine's CPU, built now or taken from the cache. Needs no CUDA.

    Raises: BackendUnavailable if g++, cmake or ninja is missing; PluginError if the sources do not compile.
    """
    definitions = {"ANDREA_HOST_ONLY": "ON"}
    build = _cmake_build("andrea_gelu_host", find_host_tools(), definitions=definitions, identity={})
    return HostGelu(cached_build(cache_dir, build, on_line=on_line).library)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuLibrary(CachedLibrary):
    """The operators for onnxruntime's CPU provider, built."""

    facts: CpuLibraryFacts


def build_cpu_library(cache_dir: Path, *, on_line: Callable[[str], None] | None = None) -> CpuLibrary:
    """The operators for onnxruntime's CPU provider, built now or taken from the cache. Needs no CUDA.

    Raises: BackendUnavailable if g++, cmake or ninja is missing; PluginError if the sources do not compile.
    """
    tools = find_host_tools()
    definitions = {"ANDREA_HOST_ONLY": "ON"}
    build = _cmake_build("andrea_cpu", tools, definitions=definitions, identity={}, folders=CPU_FOLDERS)
    facts = CpuLibraryFacts(
        sources_sha256=build.identity["sources_sha256"],
        host_compiler=tools.gxx.version,
        machine=platform.machine(),
    )
    built = cached_build(cache_dir, build, on_line=on_line)
    return CpuLibrary(
        library=built.library, library_sha256=built.library_sha256, key=built.key, reused=built.reused, facts=facts
    )


def _cmake_build(
    target: str,
    tools: HostTools,
    *,
    definitions: Mapping[str, str],
    identity: Mapping[str, str],
    folders: Sequence[str] = (),
) -> CmakeBuild:
    """The build of `target`: its own definitions and identity, and those that every build has."""
    return CmakeBuild(
        source_dir=plugin_source_dir(),
        target=target,
        cmake=tools.cmake.path,
        ninja=tools.ninja.path,
        definitions={"CMAKE_CXX_COMPILER": str(tools.gxx.path), **definitions},
        identity={
            "cmake": tools.cmake.version,
            "host_compiler": tools.gxx.version,
            "library": target,
            "machine": platform.machine(),
            "sources_sha256": plugin_sources_sha256(folders),
            **identity,
        },
    )


def _check_architectures(toolkit: CudaToolkit, wanted: tuple[str, ...]) -> None:
    known = compute_capabilities(toolkit)
    unknown = [name for name in wanted if known and name.split("-")[0] not in known]
    if not wanted or unknown:
        in_order = sorted(known, key=lambda name: (int(re.sub(r"\D.*", "", name) or 0), name))
        raise PluginError(
            f"{toolkit.nvcc.path} ({toolkit.nvcc.version}) cannot compile for "
            f"{', '.join(unknown) if unknown else 'an empty list of architectures'}; "
            f"it knows {', '.join(in_order)}",
            hint="name architectures that this nvcc knows, or install a newer one: it serves older GPUs too",
        )


def tensorrt_headers(tensorrt_root: Path | None) -> tuple[str, str]:
    """NVIDIA's headers under `tensorrt_root`, or this project's own, ``abi``, where it is None: for people, and for the
    cache's key, which knows their content.

    Raises: PluginError if the headers are not there.
    """
    if tensorrt_root is None:
        return "abi", "abi"
    candidates = [tensorrt_root / "include", tensorrt_root, *sorted(tensorrt_root.glob("include/*-linux-gnu"))]
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
    return label, json.dumps([label, digest.hexdigest()])


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
