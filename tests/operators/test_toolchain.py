"""Finding compilers: every way it can go, most of them wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import andrea_export.operators.toolchain as toolchain
from andrea_export.core.errors import BackendUnavailable
from andrea_export.operators.build import build_host_library, build_plugin_library
from andrea_export.operators.toolchain import compiler_status


@pytest.fixture
def no_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any compiler: empty PATH, no wheels, no toolkit."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(toolchain.sysconfig, "get_path", lambda name: str(tmp_path / "nothing"))
    monkeypatch.setattr(toolchain, "_wheel_toolkit_root", lambda: None)
    monkeypatch.setattr(toolchain, "_USUAL_TOOLKIT", tmp_path / "nothing")


@pytest.mark.usefixtures("no_tools")
@pytest.mark.parametrize(
    ("find", "name", "hint"),
    [
        (toolchain.find_gxx, "g++", "apt-get install g++"),
        (toolchain.find_cmake, "cmake", "pip install 'andrea-export[plugin]'"),
        (toolchain.find_ninja, "ninja", "pip install 'andrea-export[plugin]'"),
        (toolchain.find_cuda_toolkit, "nvcc", "pip install 'andrea-export[plugin]'"),
    ],
)
def test_a_missing_tool_is_one_line_and_the_command_that_brings_it(find: object, name: str, hint: str) -> None:
    assert callable(find)
    with pytest.raises(BackendUnavailable, match=name.replace("+", r"\+")) as caught:
        find()
    assert caught.value.hint == hint
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.usefixtures("no_tools")
def test_builds_without_a_compiler_are_unavailable(tmp_path: Path) -> None:
    for build in (build_plugin_library, build_host_library):
        with pytest.raises(BackendUnavailable):
            build(tmp_path)


@pytest.mark.usefixtures("no_tools")
def test_doctor_rows_without_tools() -> None:
    rows = {row.name: row for row in compiler_status()}
    assert list(rows) == ["g++", "cmake", "ninja", "nvcc"]
    assert not any(row.found for row in rows.values())
    assert all(row.hint and row.path is None and row.version is None for row in rows.values())


def test_doctor_rows_here() -> None:
    rows = {row.name: row for row in compiler_status()}
    assert rows["g++"].found
    assert rows["cmake"].version is not None
    assert "cmake version" in rows["cmake"].version
    assert rows["ninja"].path is not None


def fake_nvcc(folder: Path, *, works: bool = True) -> Path:
    nvcc = folder / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    answer = "echo 'nvcc: fake'; echo 'Build fake_1.0'" if works else "exit 1"
    nvcc.write_text(f"#!/bin/sh\n{answer}\n")
    nvcc.chmod(0o755)
    return nvcc


@pytest.mark.usefixtures("no_tools")
def test_a_toolkit_that_was_named_is_used(tmp_path: Path) -> None:
    nvcc = fake_nvcc(tmp_path / "toolkit")
    for named in (tmp_path / "toolkit", nvcc):
        found = toolchain.find_cuda_toolkit(named)
        assert found.nvcc.path == nvcc
        assert found.nvcc.version == "Build fake_1.0"
        assert found.root == tmp_path / "toolkit"
        assert found.library_folder is None


@pytest.mark.usefixtures("no_tools")
def test_a_toolkit_that_does_not_run_is_not_used(tmp_path: Path) -> None:
    fake_nvcc(tmp_path / "toolkit", works=False)
    with pytest.raises(BackendUnavailable, match="nvcc"):
        toolchain.find_cuda_toolkit(tmp_path / "toolkit")


@pytest.mark.usefixtures("no_tools")
def test_the_key_knows_an_installed_toolkit_by_its_version_file(tmp_path: Path) -> None:
    fake_nvcc(tmp_path / "toolkit")
    toolkit = toolchain.find_cuda_toolkit(tmp_path / "toolkit")
    seen = {toolchain.toolkit_parts(toolkit)}
    assert seen == {"not stated"}
    for version in ("13.0.1", "13.0.2"):
        (tmp_path / "toolkit" / "version.json").write_text(json.dumps({"cuda_cudart": {"version": version}}))
        seen.add(toolchain.toolkit_parts(toolkit))
    assert len(seen) == 3
