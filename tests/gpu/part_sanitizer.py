"""Runs the kernel over odd sizes and alignments, alone and under compute-sanitizer's memcheck and racecheck."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from gpu_parts import REPOSITORY, Built, NotAvailable, PartResult, gpu_architecture

_SECONDS = 14  # a run: three of them and the compiler fit into the part's time


def run(built: Built, result: PartResult) -> None:
    """One row a tool. Raises: NotAvailable without a GPU or nvcc."""
    if built.nvcc is None:
        raise NotAvailable("torch sees no CUDA GPU on this machine")
    program = built.cache / "device_checks"
    program.parent.mkdir(parents=True, exist_ok=True)
    plugins = REPOSITORY / "plugins"
    sources = [str(plugins / "tests" / "device_checks.cu"), str(plugins / "gelu" / "kernel.cu")]
    libraries = [f"-L{Path(built.nvcc).parent.parent / 'lib'}"]  # where the PyPI wheels have the static runtime
    command = [built.nvcc, "-std=c++17", f"-arch=sm_{gpu_architecture()}", "-lineinfo", "-I", str(plugins), *libraries]
    subprocess.run([*command, "-o", str(program), *sources], check=True, capture_output=True, text=True)
    _run_one(result, "alone", [str(program)])
    sanitizer = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path=str(Path(built.nvcc).parent)
    )
    if sanitizer is None:
        result.note("compute-sanitizer is not on PATH: memcheck and racecheck did not run")
        return
    for tool in ("memcheck", "racecheck"):
        _run_one(result, tool, [sanitizer, "--tool", tool, "--error-exitcode", "9", str(program)])


def _run_one(result: PartResult, tool: str, command: list[str]) -> None:
    try:
        finished = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        result.fail(f"{tool}: not finished in {_SECONDS} s")
        return
    reports = [line for line in finished.stdout.splitlines() if line.startswith('{"checks"')]
    report = json.loads(reports[-1]) if reports else {"checks": 0, "failures": []}
    summary = [line for line in finished.stdout.splitlines() if "ERROR SUMMARY" in line or "RACECHECK SUMMARY" in line]
    said = summary[-1].strip("= ") if summary else ""
    if not reports and "not supported" in finished.stdout + finished.stderr:
        result.note(f"{tool}: this machine's driver or container does not support it")
        return
    result.row({"tool": tool, "checks": report["checks"], "wrong": len(report["failures"]), "summary": said})
    result.expect(report["checks"] > 100, f"{tool}: {finished.stdout[-300:]} {finished.stderr[-300:]}")
    result.expect(report["failures"] == [], f"{tool}: {report['failures'][:3]}")
    result.expect(finished.returncode == 0, f"{tool}: exit code {finished.returncode}: {said}")
