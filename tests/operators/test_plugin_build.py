"""What a build is asked for and named by, and what stops it."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
from pathlib import Path

import pytest

import andrea_export.operators.build as build_module
import andrea_export.operators.toolchain as toolchain
from andrea_export.core.errors import BackendUnavailable, PluginError
from andrea_export.operators.build import build_host_library, build_plugin_library
from andrea_export.operators.cache import CmakeBuild


def test_an_architecture_the_compiler_does_not_know(tmp_path: Path) -> None:
    try:
        toolchain.find_cuda_toolkit()
    except BackendUnavailable as missing:
        pytest.skip(str(missing))
    with pytest.raises(PluginError, match=r"cannot compile for 20-real; it knows .*90"):
        build_plugin_library(tmp_path, architectures=("20-real", "90-real"))
    with pytest.raises(PluginError, match="an empty list"):
        build_plugin_library(tmp_path, architectures=())


def test_tensorrt_headers_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"found no include/NvInferRuntime\.h"):
        build_plugin_library(tmp_path / "cache", tensorrt_root=tmp_path)


def plugin_build_identity(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the plugin library would be cached under here, without building it."""

    class Asked(Exception):
        pass

    asked: list[CmakeBuild] = []

    def stop(_: Path, build: CmakeBuild, **__: object) -> None:
        asked.append(build)
        raise Asked

    with monkeypatch.context() as patched:
        patched.setattr(build_module, "cached_build", stop)
        with pytest.raises(Asked):
            build_plugin_library(Path("unused"))
    return dict(asked[0].identity)


def test_the_key_knows_the_machine_and_every_part_of_the_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        toolkit = toolchain.find_cuda_toolkit()
    except BackendUnavailable as missing:
        pytest.skip(str(missing))
    before = plugin_build_identity(monkeypatch)
    monkeypatch.setattr("platform.machine", lambda: "another")
    other_machine = plugin_build_identity(monkeypatch)
    assert {name for name in before if before[name] != other_machine[name]} == {"machine"}
    if toolkit.library_folder is None:
        return  # an installed toolkit: the next test
    real = importlib.metadata.version
    for wheel in ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-runtime", "nvidia-cuda-cccl"):
        with monkeypatch.context() as patched:
            patched.setattr("importlib.metadata.version", lambda name, of=wheel: "0.0" if name == of else real(name))
            other_part = plugin_build_identity(monkeypatch)
        assert {name for name in before if other_machine[name] != other_part[name]} == {"toolkit_parts"}, wheel


def test_a_warning_stops_the_tests_build_and_not_a_users(sources: Path, tmp_path: Path) -> None:
    """A newer compiler may warn of what none warns of today."""
    with (sources / "gelu" / "host.cpp").open("a") as file:
        file.write("\nnamespace { int of_no_use = 1; }\n")
    lines: list[str] = []
    build_host_library(tmp_path / "cache", on_line=lines.append)
    assert any("warning:" in line and "of_no_use" in line for line in lines)

    cmake, ninja = toolchain.find_cmake(), toolchain.find_ninja()
    configure = [str(cmake.path), "-S", str(sources), "-B", str(tmp_path / "strict"), "-G", "Ninja"]
    options = [f"-DCMAKE_MAKE_PROGRAM={ninja.path}", "-DANDREA_HOST_ONLY=ON", "-DANDREA_WARNINGS_AS_ERRORS=ON"]
    subprocess.run([*configure, *options], check=True, capture_output=True)
    strict = subprocess.run([str(cmake.path), "--build", str(tmp_path / "strict")], capture_output=True, text=True)
    assert strict.returncode != 0
    assert "[-Werror=unused-variable]" in strict.stdout


def test_sources_that_do_not_compile(sources: Path, tmp_path: Path) -> None:
    with (sources / "gelu" / "host.cpp").open("a") as file:
        file.write("\nint broken( {\n")
    with pytest.raises(PluginError, match=r"host\.cpp:\d+:\d+: error: ") as caught:
        build_host_library(tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert caught.value.hint is not None
    log = Path(caught.value.hint.split()[-1])
    assert "broken" in log.read_text()
    assert [path for path in log.parent.glob("andrea_gelu_host-*") if path.is_dir()] == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"storage_types": ["fp32", "fp8"]}, "unknown storage type 'fp8'"),
        ({"storage_types": []}, "storage_types is empty"),
        ({"attributes": ["alpha"]}, "takes no attributes"),
    ],
)
def test_an_operator_row_the_plugin_cannot_serve(
    sources: Path, tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    row = sources / "gelu" / "op.json"
    row.write_text(json.dumps({**json.loads(row.read_text()), **change}))
    with pytest.raises(PluginError, match=reason):
        build_host_library(tmp_path / "cache")
