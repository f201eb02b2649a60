"""Finding compilers, caching builds, and refusing foreign libraries: every way it can go, most of them wrong."""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import andrea_export.operators.build as build_module
import andrea_export.operators.sources as sources_module
import andrea_export.operators.toolchain as toolchain
from andrea_export.core.errors import BackendUnavailable, PluginError
from andrea_export.operators import (
    HostGelu,
    build_host_library,
    build_plugin_library,
    check_library,
    compiler_status,
    default_architectures,
    plugin_sources_sha256,
    read_creators,
)
from andrea_export.operators.cache import CmakeBuild
from andrea_export.operators.environment import compilers_environment
from andrea_export.operators.rows import andrea_gelu, plugin_source_dir

# --- sources --------------------------------------------------------------------------------------------------------


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the plugin's sources, to be changed, that the package takes for its own."""
    copy = Path(shutil.copytree(plugin_source_dir(), tmp_path / "sources"))
    for module in (build_module, sources_module):
        monkeypatch.setattr(module, "plugin_source_dir", lambda: copy)
    return copy


def test_the_hash_sees_sources_and_nothing_else(sources: Path) -> None:
    before = plugin_sources_sha256()
    (sources / "README.md").write_text("other prose")
    (sources / "build").mkdir()
    (sources / "build" / "CMakeCache.txt").write_text("left by a build")
    assert plugin_sources_sha256() == before
    for changed in ("gelu/kernel.cu", "gelu/op.json", "CMakeLists.txt", "cmake/exports.map", "architectures.json"):
        with (sources / changed).open("a") as file:
            file.write("\n")
        after = plugin_sources_sha256()
        assert after != before, changed
        before = after


def test_the_hash_sees_names(sources: Path) -> None:
    before = plugin_sources_sha256()
    (sources / "gelu" / "math.h").rename(sources / "gelu" / "maths.h")
    assert plugin_sources_sha256() != before


def test_the_default_architectures_serve_every_gpu_from_ampere_on() -> None:
    assert default_architectures() == ("80-real", "89-real", "90", "120-real")


# --- compilers ------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any compiler: empty PATH, no wheels, no toolkit."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(toolchain, "_environment_script", lambda name: tmp_path / "nothing" / name)
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


# --- the cache ------------------------------------------------------------------------------------------------------


def entries(cache: Path) -> list[str]:
    """What is in the cache besides logs and locks."""
    return sorted(path.name for path in (cache / "plugins").iterdir() if path.suffix not in (".log", ".lock"))


def test_a_second_build_is_taken_from_the_cache(tmp_path: Path) -> None:
    lines: list[str] = []
    first = build_host_library(tmp_path, on_line=lines.append)
    assert any("andrea_gelu_host" in line for line in lines)
    stamp = first.library.stat().st_mtime_ns
    lines.clear()
    second = build_host_library(tmp_path, on_line=lines.append)
    assert lines == []
    assert second.library == first.library
    assert second.library.stat().st_mtime_ns == stamp
    record = json.loads((first.library.parent / "build.json").read_text())
    assert record["sources_sha256"] == plugin_sources_sha256()


@pytest.mark.parametrize("damage", ["flip", "truncate", "no record", "record of another", "not json"])
def test_a_damaged_entry_is_built_again(tmp_path: Path, damage: str) -> None:
    library = build_host_library(tmp_path).library
    whole = library.read_bytes()
    record = library.parent / "build.json"
    # Beside the file and renamed over it: this process has it mapped.
    if damage in ("flip", "truncate"):
        spoiled = bytearray(whole)
        spoiled[len(spoiled) // 2] ^= 1
        library.with_suffix(".new").write_bytes(bytes(spoiled) if damage == "flip" else whole[:100])
        library.with_suffix(".new").replace(library)
    elif damage == "no record":
        record.unlink()
    elif damage == "record of another":
        record.write_text(json.dumps({**json.loads(record.read_text()), "key": "0" * 32}))
    else:
        record.write_text("[")
    again = build_host_library(tmp_path)
    assert again.library == library
    assert library.read_bytes() == whole
    assert np.array_equal(again.apply(np.zeros(3, np.float32), "fp32"), np.zeros(3, np.float32))
    assert entries(tmp_path) == [library.parent.name]


def test_builds_at_the_same_time_make_one(tmp_path: Path) -> None:
    lines: list[str] = []
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda _: build_host_library(tmp_path, on_line=lines.append), range(4)))
    assert len({host.library for host in built}) == 1
    assert sum(line.endswith("Linking CXX shared library libandrea_gelu_host.so") for line in lines) == 1
    assert len(entries(tmp_path)) == 1


def test_a_killed_build_leaves_nothing_that_matters(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=build_host_library, args=(tmp_path,))
    process.start()
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("plugins/.andrea_gelu_host-*")):
            assert process.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    assert [name for name in entries(tmp_path) if not name.startswith(".")] == []
    built = build_host_library(tmp_path)
    # Compilers that outlived the kill may still write into their folder; once they are gone, so is what they left.
    deadline = time.monotonic() + 60
    while entries(tmp_path) != [built.library.parent.name]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
        assert build_host_library(tmp_path).library == built.library


def test_a_running_build_keeps_its_folder(tmp_path: Path) -> None:
    """What looks like a leftover is not swept while its build holds the lock."""
    library = build_host_library(tmp_path).library
    running = tmp_path / "plugins" / f".{library.parent.name}.running"
    running.mkdir()
    with (tmp_path / "plugins" / f"{library.parent.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        build_host_library(tmp_path)
        assert running.exists()
    build_host_library(tmp_path)
    assert not running.exists()


def test_the_sources_are_not_written_to(tmp_path: Path) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in plugin_source_dir().rglob("*"))
    build_host_library(tmp_path)
    assert sorted((path, path.stat().st_mtime_ns) for path in plugin_source_dir().rglob("*")) == before


def test_what_a_shell_sets_for_compilers_does_not_reach_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any of these would stop the build, or change it under the same key."""
    plain = build_host_library(tmp_path / "plain").library
    monkeypatch.setenv("CXX", "no-such-compiler")
    for flags in ("CXXFLAGS", "LDFLAGS", "CUDAFLAGS", "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS"):
        monkeypatch.setenv(flags, "--no-such-flag")
    for launcher in ("CMAKE_CXX_COMPILER_LAUNCHER", "CMAKE_CXX_LINKER_LAUNCHER", "NVCC_CCBIN", "CUDAHOSTCXX"):
        monkeypatch.setenv(launcher, "no-such-program")
    monkeypatch.setenv("CMAKE_BUILD_TYPE", "Debug")
    monkeypatch.setenv("CMAKE_TOOLCHAIN_FILE", str(tmp_path / "no-such-file"))
    monkeypatch.setenv("CPATH", str(tmp_path))
    (tmp_path / "cmath").write_text("#error not this one\n")
    monkeypatch.setenv("LD_RUN_PATH", str(tmp_path))
    there = build_host_library(tmp_path / "there").library
    assert there.read_bytes() == plain.read_bytes()


# What nvcc appends to its tools' command lines beside what its profile names; found in the program itself.
UNDOCUMENTED = {"NVASM_FLAGS", "NVDISASM_FLAGS", "NVLINK_FLAGS", "NVVM_FLAGS", "OCG_FLAGS"}
DOCUMENTED = {"NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS"}


def test_what_a_shell_sets_for_nvcc_does_not_reach_its_tools(tmp_path: Path) -> None:
    """`nvcc --dryrun` prints every command it would run, and each of these names would be in one."""
    try:
        toolkit = toolchain.find_cuda_toolkit()
    except BackendUnavailable as missing:
        pytest.skip(str(missing))
    profile = (toolkit.root / "bin" / "nvcc.profile").read_text()
    appended = set(re.findall(r"^(\w+) *(?:\+=|=\+)", profile, re.MULTILINE)) - {"PATH", "LD_LIBRARY_PATH"}
    assert {"PTXAS_FLAGS", "CUDAFE_FLAGS", "INCLUDES", "SYSTEM_INCLUDES", "LIBRARIES"} <= appended
    source = tmp_path / "empty.cu"
    source.write_text("__global__ void nothing() {}\n")
    command = [str(toolkit.nvcc.path), "--dryrun", "-shared", "-o", str(tmp_path / "empty.so"), str(source)]

    def reached(environment: dict[str, str]) -> set[str]:
        said = subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stderr
        return set(re.findall(r"-DSET_(\w+)", said))

    shell = {**os.environ, **{name: f"-DSET_{name}" for name in appended | UNDOCUMENTED | DOCUMENTED}}
    assert appended <= reached(shell)  # or what follows would prove nothing
    assert reached(compilers_environment(shell)) == set()


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


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "plugins").write_text("a file where the folder should be")
    with pytest.raises(PluginError, match="cannot be used") as caught:
        build_host_library(tmp_path)
    assert caught.value.hint is not None


def test_sources_that_do_not_compile(sources: Path, tmp_path: Path) -> None:
    with (sources / "gelu" / "host.cpp").open("a") as file:
        file.write("\nint broken( {\n")
    with pytest.raises(PluginError, match=r"host\.cpp:\d+:\d+: error: ") as caught:
        build_host_library(tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert caught.value.hint is not None
    log = Path(caught.value.hint.split()[-1])
    assert "broken" in log.read_text()
    assert not any(name.startswith("andrea_gelu_host") for name in entries(tmp_path / "cache"))


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


# --- the operator's row, in Python and in the library ---------------------------------------------------------------


def cpu_plugin(sources: Path, folder: Path) -> Path:
    """The plugin over the CPU grid, which g++ alone compiles: same creators, same row."""
    cmake = str(toolchain.find_cmake().path)
    configure = [cmake, "-S", str(sources), "-B", str(folder), "-G", "Ninja"]
    options = [
        f"-DCMAKE_MAKE_PROGRAM={toolchain.find_ninja().path}",
        "-DANDREA_HOST_ONLY=ON",
        "-DANDREA_BUILD_TESTS=ON",
    ]
    build = [cmake, "--build", str(folder), "--target", "andrea_plugins_cpu", "-j", "2"]
    for command in ([*configure, *options], build):
        subprocess.run(command, check=True, capture_output=True)
    return folder / "libandrea_plugins_cpu.so"


@pytest.fixture(scope="session")
def plugin_on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cpu_plugin(plugin_source_dir(), tmp_path_factory.mktemp("plugin_on_cpu"))


def test_the_library_answers_to_the_row(plugin_on_cpu: Path) -> None:
    op = andrea_gelu()
    creator = check_library(plugin_on_cpu, op)
    assert (creator.name, creator.version, creator.namespace) == (
        op.op_type,
        op.plugin_version,
        op.plugin_namespace,
    )


def test_another_row_makes_another_library(sources: Path, tmp_path: Path) -> None:
    row = sources / "gelu" / "op.json"
    changed = {"op_type": "OtherGelu", "plugin_version": "7", "plugin_namespace": "org.other"}
    row.write_text(json.dumps({**json.loads(row.read_text()), **changed}))
    library = cpu_plugin(sources, tmp_path / "build")
    (creator,) = read_creators(library)
    assert (creator.name, creator.version, creator.namespace) == ("OtherGelu", "7", "org.other")
    with pytest.raises(PluginError, match=r"asks for AndreaGelu version 1 .* offers OtherGelu version 7"):
        check_library(library, andrea_gelu())


# --- foreign libraries ----------------------------------------------------------------------------------------------


def compiled(tmp_path: Path, source: str) -> Path:
    library = tmp_path / "libforeign.so"
    subprocess.run(
        ["g++", "-shared", "-fPIC", "-o", str(library), "-x", "c++", "-"], input=source, text=True, check=True
    )
    return library


def refused(library: Path, reason: str) -> PluginError:
    with pytest.raises(PluginError, match=reason) as caught:
        read_creators(library)
    assert str(library) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.hint is not None
    return caught.value


def test_a_missing_library(tmp_path: Path) -> None:
    refused(tmp_path / "libnone.so", "No such file")


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"#!/bin/sh\n" * 20], ids=["empty", "four bytes", "a script"])
def test_a_file_that_is_no_library(tmp_path: Path, content: bytes) -> None:
    library = tmp_path / "libtext.so"
    library.write_bytes(content)
    refused(library, "expected a shared library")


def test_a_folder(tmp_path: Path) -> None:
    refused(tmp_path, "cannot be read")


def test_a_truncated_library(tmp_path: Path, plugin_on_cpu: Path) -> None:
    library = tmp_path / "libshort.so"
    library.write_bytes(plugin_on_cpu.read_bytes()[:2000])
    refused(library, "cannot be loaded|crashed the process")


def test_a_library_of_another_machine(tmp_path: Path, plugin_on_cpu: Path) -> None:
    content = bytearray(plugin_on_cpu.read_bytes())
    other = 62 if content[18] == 183 else 183
    content[18:20] = other.to_bytes(2, "little")
    library = tmp_path / "libother.so"
    library.write_bytes(bytes(content))
    refused(library, "built for (aarch64|x86_64), this machine is")


def test_a_library_without_get_creators(tmp_path: Path) -> None:
    error = refused(compiled(tmp_path, "int nothing;"), "exports no getCreators")
    assert error.hint is not None
    assert "getCreators and setLoggerFinder" in error.hint


def test_a_library_that_needs_another_one_that_is_not_there(tmp_path: Path) -> None:
    source = 'extern "C" int missing_function(); int call() { return missing_function(); } int x = call();'
    refused(compiled(tmp_path, source), "cannot be loaded: .*missing_function")


def test_a_library_that_crashes_while_loading(tmp_path: Path) -> None:
    source = "#include <cstdlib>\nstruct Crash { Crash() { std::abort(); } } crash;"
    refused(compiled(tmp_path, source), "crashed the process that loaded it .SIGABRT.")


def test_a_library_that_exits_while_loading(tmp_path: Path) -> None:
    source = "#include <unistd.h>\nstruct Quit { Quit() { _exit(0); } } quit;"
    refused(compiled(tmp_path, source), "ended the process that loaded it")


def test_a_library_that_talks_while_loading(tmp_path: Path) -> None:
    """What it prints is not taken for the answer."""
    source = (
        '#include <cstdio>\nstruct Talk { Talk() { std::puts("hello"); std::puts("{}"); } } talk;\n'
        'extern "C" void* const* getCreators(int& count) { count = 0; return nullptr; }'
    )
    library = compiled(tmp_path, source)
    assert read_creators(library) == ()
    with pytest.raises(PluginError, match="the library offers no creator at all"):
        check_library(library, andrea_gelu())


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("count = -1; return nullptr;", "counts -1 creators"),
        ("count = 2; return nullptr;", "counts 2 creators"),
        ("static void* none[1] = {nullptr}; count = 1; return none;", "creator 0 of 1 is null"),
        ("static void* bad[1] = {(void*)16}; count = 1; return bad;", "crashed the process.*SIGSEGV"),
    ],
)
def test_creators_that_are_none(tmp_path: Path, body: str, reason: str) -> None:
    refused(compiled(tmp_path, f'extern "C" void* const* getCreators(int& count) {{ {body} }}'), reason)


def test_a_creator_of_an_unknown_kind(tmp_path: Path) -> None:
    source = """
    struct Info { char const* kind; int major; int minor; };
    struct Creator {
      virtual int language() const noexcept { return 0; }
      virtual Info info() const noexcept { return {"PLUGIN CREATOR_V9", 9, 0}; }
      virtual ~Creator() {}
    };
    extern "C" void* const* getCreators(int& count) {
      static Creator creator; static void* list[1] = {&creator}; count = 1; return list;
    }"""
    refused(compiled(tmp_path, source), "unknown kind 'PLUGIN CREATOR_V9'")


# --- the host library's wrapper -------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> HostGelu:
    return build_host_library(tmp_path_factory.mktemp("host"))


def test_shape_and_dtype_are_kept(host: HostGelu) -> None:
    bits = np.arange(24, dtype=np.uint16).reshape(2, 3, 4)
    for array, storage in (
        (np.linspace(-3, 3, 24, dtype=np.float32).reshape(2, 3, 4), "fp32"),
        (np.linspace(-3, 3, 24).astype(np.float16).reshape(2, 3, 4), "fp16"),
        (bits.view(ml_dtypes.bfloat16), "bf16"),
        (bits, "bf16"),
        (np.float32(1.5).reshape(()), "fp32"),
        (np.zeros((0, 5), np.float32), "fp32"),
    ):
        result = host.apply(array, storage)
        assert result.shape == array.shape
        assert result.dtype == array.dtype


def test_strides_are_followed(host: HostGelu) -> None:
    x = np.linspace(-3, 3, 60, dtype=np.float32).reshape(6, 10)
    whole = host.apply(x, "fp32")
    assert np.array_equal(host.apply(x[::2, ::-3], "fp32"), whole[::2, ::-3])
    assert np.array_equal(host.apply(x.T, "fp32"), whole.T)


def test_bits_and_bfloat16_are_the_same(host: HostGelu) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    assert np.array_equal(host.apply(bits, "bf16"), host.apply(bits.view(ml_dtypes.bfloat16), "bf16").view(np.uint16))


def test_a_wrong_dtype_or_storage_is_refused(host: HostGelu) -> None:
    with pytest.raises(PluginError, match="expected an array of float16, found float32"):
        host.apply(np.zeros(3, np.float32), "fp16")
    with pytest.raises(PluginError, match="storage type 'fp8'"):
        host.apply(np.zeros(3, np.float32), "fp8")
    with pytest.raises(PluginError, match="no modelled error"):
        host.apply(np.zeros(3, np.float32), "fp32", exp2_relative_error=1e-7)


def test_a_host_library_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="cannot be loaded"):
        HostGelu(compiled(tmp_path, "int nothing;"))
    with pytest.raises(PluginError, match="cannot be loaded"):
        HostGelu(tmp_path / "none.so")


def test_the_package_imports_no_tensorrt() -> None:
    code = "import sys, andrea_export.operators; print(any('tensorrt' in name for name in sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
