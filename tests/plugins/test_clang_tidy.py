"""clang-tidy finds nothing in the plugin's sources; .clang-tidy beside them says what is asked and what is left out."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from andrea_export.core.errors import BackendUnavailable
from andrea_export.operators.toolchain import find_cuda_toolkit
from support.plugin_builds import PLUGINS


def sources(*patterns: str) -> list[str]:
    return sorted(path.relative_to(PLUGINS).as_posix() for pattern in patterns for path in PLUGINS.glob(pattern))


# What g++ compiles for the CPU grid, kernels included; and every kernel file as CUDA.
AS_CPP = sources("tensorrt/*.cpp", "gelu/*.cpp", "gelu/*.cu", "tests/*.cpp")
AS_CUDA = sources("**/*.cu")
# What x86-64 compiles of the CPU operators, with the instructions that CMake gives the file.
FOR_CPU = [source for source in sources("cpu/**/*.cpp", "tests/cpu/*.cpp") if "dot_product" not in source]
INSTRUCTIONS = {
    "dispatch": ["-DANDREA_CPU_PATHS="],
    "avx2": ["-mavx2", "-mfma"],
    "avx_vnni": ["-mavx2", "-mfma", "-mavxvnni"],
    "avx512_vnni": ["-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni"],
}


@pytest.fixture(scope="module")
def clang_tidy() -> str:
    """The environment's own, else PATH's."""
    found = shutil.which("clang-tidy", path=sysconfig.get_path("scripts")) or shutil.which("clang-tidy")
    if found is None:
        pytest.skip("clang-tidy is not here (pip install 'andrea-export[dev]')")
    return found


def findings(clang_tidy: str, source: str, options: list[str]) -> str:
    """What is said of the source and of the headers it includes, which it finds by absolute paths."""
    common = ["-std=c++17", "-Wall", "-Wextra", f"-I{PLUGINS}", *options]
    command = [clang_tidy, "--quiet", source, "--", *common]
    finished = subprocess.run(command, cwd=PLUGINS, capture_output=True, text=True, check=False)
    return finished.stdout if finished.returncode == 0 else finished.stdout + finished.stderr


def all_findings(clang_tidy: str, files: list[str], options: list[str]) -> list[str]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda source: findings(clang_tidy, source, options), files))


def cpp_options(generated: Path) -> list[str]:
    return ["-x", "c++", "-DANDREA_CPU_GRID=1", f"-I{generated}"]


def cuda_options(folder: Path) -> list[str]:
    """Both halves of a CUDA file as its host half sees them, over the toolkit's own headers.

    clang's CUDA wrapper includes one header of cuRAND, which the toolkit's wheels do without: an empty one will do.
    """
    try:
        toolkit = find_cuda_toolkit()
    except BackendUnavailable as missing:
        pytest.skip(f"{missing} ({missing.hint})")
    (folder / "curand_mtgp32_kernel.h").write_text("")
    return ["-x", "cuda", "--cuda-host-only", "-nocudalib", f"--cuda-path={toolkit.root}", "-isystem", str(folder)]


def test_every_source_is_clean_as_cpp(clang_tidy: str, cpp_programs: Path) -> None:
    assert "gelu/kernel.cu" in AS_CPP
    assert all_findings(clang_tidy, AS_CPP, cpp_options(cpp_programs / "generated")) == [""] * len(AS_CPP)


@pytest.mark.parametrize("source", FOR_CPU)
def test_every_source_for_the_cpu_is_clean(clang_tidy: str, source: str) -> None:
    assert findings(clang_tidy, source, ["-x", "c++", *INSTRUCTIONS.get(Path(source).stem, [])]) == ""


def test_every_cuda_file_is_clean_as_cuda(clang_tidy: str, tmp_path: Path) -> None:
    assert len(AS_CUDA) >= 4
    assert all_findings(clang_tidy, AS_CUDA, cuda_options(tmp_path)) == [""] * len(AS_CUDA)


@pytest.mark.parametrize("source", ["tensorrt/creators.cpp", "tests/launch_c.cu"])
def test_a_finding_in_a_header_is_seen(clang_tidy: str, tmp_path: Path, source: str) -> None:
    header = tmp_path / "plugins" / "common" / "planted.h"
    header.parent.mkdir(parents=True)
    header.write_text("inline int* planted() { return 0; }\n")
    options = cuda_options(tmp_path) if source.endswith(".cu") else cpp_options(tmp_path)
    said = findings(clang_tidy, source, [*options, "-include", str(header)])
    assert "planted.h" in said
    assert "modernize-use-nullptr" in said
