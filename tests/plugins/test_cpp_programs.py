"""The C++ test programs: the kernel's source on the CPU grid, and the plugin's contract without TensorRT."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from andrea_export.operators.build import PluginBuild
from andrea_export.operators.sources import andrea_gelu
from support.plugin_builds import PLUGIN_ON_CPU, PLUGINS, build_programs


def run_checks(*command: str | Path) -> int:
    """The number of checks the program made. It must print its JSON line and nothing else, on either stream."""
    finished = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, check=False)
    assert finished.stderr == ""
    assert finished.stdout.count("\n") == 1, finished.stdout
    report = json.loads(finished.stdout)
    assert report["failures"] == []
    assert finished.returncode == 0
    return int(report["checks"])


@pytest.fixture(params=["plain", "sanitized"])
def programs(request: pytest.FixtureRequest) -> Path:
    folder = request.getfixturevalue("cpp_programs" if request.param == "plain" else "sanitized_programs")
    assert isinstance(folder, Path)
    return folder


def test_kernel_at_every_length_and_alignment(programs: Path) -> None:
    assert run_checks(programs / "andrea_kernel_checks") > 1000


def test_kernel_at_more_than_two_to_the_31_elements(cpp_programs: Path) -> None:
    # Not sanitized: the address sanitizer's shadow of 17 GB of address space takes memory the machine may not
    # have.
    assert run_checks(cpp_programs / "andrea_kernel_checks", "huge") > 20


def contract(programs: Path, library: Path, mode: str) -> int:
    op = andrea_gelu()
    names = (op.op_type, op.plugin_version, op.plugin_namespace)
    return run_checks(programs / "andrea_contract_checks", library, *names, mode)


def test_contract_of_the_plugin_over_the_cpu_grid(programs: Path) -> None:
    """From creator to computed result, through the ABI alone."""
    assert contract(programs, programs / PLUGIN_ON_CPU, "cpu") > 1000


def test_contract_of_the_library_that_ships(cpp_programs: Path, plugin_build: PluginBuild) -> None:
    """The same walk over the CUDA build: what needs a device returns CUDA's error, prints nothing."""
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVIDIA driver; tests/gpu runs enqueue there")
    assert contract(cpp_programs, plugin_build.library, "no-gpu") > 1000


def test_a_call_that_asks_or_allocates_is_seen(cpp_programs: Path, tmp_path: Path) -> None:
    """The same checks over an enqueue that does both once a call."""
    sources = shutil.copytree(PLUGINS, tmp_path / "sources")
    plugin = sources / "tensorrt" / "elementwise_plugin.cpp"
    code = plugin.read_text()
    launch = "  return static_cast<Status>(op_->launch("
    assert code.count(launch) == 1
    planted = (
        "  (void)query_limits(limits_);\n"
        "  void* volatile memory = std::malloc(64);  // volatile: g++ may leave out a malloc that is only freed\n"
        "  std::free(memory);\n"
    )
    code = code.replace(launch, planted + launch).replace("#include <new>", "#include <cstdlib>\n#include <new>")
    plugin.write_text(code)
    library = build_programs(sources, tmp_path / "build", "andrea_plugins_cpu") / PLUGIN_ON_CPU
    op = andrea_gelu()
    command = [cpp_programs / "andrea_contract_checks", library, op.op_type, op.plugin_version, op.plugin_namespace]
    finished = subprocess.run([*map(str, command), "cpu"], capture_output=True, text=True, check=False)
    failures = json.loads(finished.stdout)["failures"]
    for storage in ("0", "1", "7"):  # TensorRT's fp32, fp16 and bf16
        assert f"a thousand calls allocate nothing type {storage}" in failures
        assert f"a thousand calls ask the device nothing type {storage}" in failures


def test_a_library_that_breaks_the_contract_is_seen(cpp_programs: Path) -> None:
    """The checks can fail: asked for another version, the same library does not pass."""
    command = [
        str(cpp_programs / "andrea_contract_checks"),
        str(cpp_programs / PLUGIN_ON_CPU),
        *("AndreaGelu", "2", "com.andrea", "cpu"),
    ]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 1
    assert "creator's version" in json.loads(finished.stdout)["failures"]
