"""Runs every part of the GPU check, each in a process of its own, and writes one JSON and one Markdown table.

    python tests/gpu/gpu_check.py OUT [--rehearse] [--parts build,accuracy,…]

A part that cannot run says "not available" and why; none stops the others. `--rehearse` runs what a CPU can, over the
plugin compiled for the CPU, and shows every "not available" path. Exit code: 0 if no part failed, else 1.
scripts/gpu_check.sh is the way to start it.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import platform
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

# Seconds each part may take: together under six minutes without engines, and no part can use up the others' time.
PARTS = {"build": 90, "accuracy": 120, "sanitizer": 120, "timing": 120, "variants": 60, "model": 60, "engines": 600}


def main() -> int:
    """Runs the parts; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--only", help=argparse.SUPPRESS)  # the part this process is
    arguments = parser.parse_args()
    out: Path = arguments.out.resolve()
    if arguments.only:
        run_part(arguments.only, out, rehearse=arguments.rehearse)
        return 0
    asked = arguments.parts.split(",")
    unknown = [name for name in asked if name not in PARTS]
    if unknown:
        parser.error(f"unknown part {', '.join(unknown)}; parts: {', '.join(PARTS)}")
    out.mkdir(parents=True, exist_ok=True)
    results = {}
    for name in PARTS:
        if name not in asked:
            continue
        sys.stderr.write(f"{name} … ")
        sys.stderr.flush()
        results[name] = start_part(name, out, rehearse=arguments.rehearse)
        sys.stderr.write(f"{results[name]['status']} ({results[name]['seconds']:.1f} s) {results[name]['reason']}\n")
    report = {"machine": machine(), "rehearsal": arguments.rehearse, "parts": results}
    (out / "gpu_check.json").write_text(json.dumps(report, indent=2) + "\n")
    (out / "gpu_check.md").write_text(markdown(report))
    sys.stdout.write(f"{out / 'gpu_check.json'}\n{out / 'gpu_check.md'}\n")
    return 1 if any(part["status"] == "failed" for part in results.values()) else 0


def start_part(name: str, out: Path, *, rehearse: bool) -> dict[str, Any]:
    """The part's result, from a process that may crash, hang or be missing what it needs."""
    file = out / f"part_{name}.json"
    file.unlink(missing_ok=True)
    command = [sys.executable, str(Path(__file__).resolve()), str(out), "--only", name]
    began = time.monotonic()
    try:
        finished = subprocess.run(
            [*command, *(["--rehearse"] if rehearse else [])],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PARTS[name],
            check=False,
        )
        said = (finished.stderr.strip() or finished.stdout.strip() or "no output").splitlines()[-1]
        died = f"exit code {finished.returncode}: {said}"
        (out / f"part_{name}.log").write_text(finished.stdout + finished.stderr)
    except subprocess.TimeoutExpired:
        died = f"not finished in {PARTS[name]} s"
    seconds = time.monotonic() - began
    result: dict[str, Any] = {"status": "failed", "reason": died}
    if file.is_file():
        result = json.loads(file.read_text())
        file.unlink()
    return {**result, "seconds": round(seconds, 1)}


def run_part(name: str, out: Path, *, rehearse: bool) -> None:
    """Runs one part in this process and writes its result."""
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    try:
        result = part_result(name, out, rehearse=rehearse)
    except ModuleNotFoundError as error:
        result = {"status": "not available", "reason": f"the module {error.name} cannot be imported"}
    except Exception as error:  # one part's failure must not hide the others' results
        traceback.print_exc()
        result = {"status": "failed", "reason": f"{type(error).__name__}: {str(error).splitlines()[0:1]}"}
    (out / f"part_{name}.json").write_text(json.dumps(result))


def part_result(name: str, out: Path, *, rehearse: bool) -> dict[str, Any]:
    """The part's result as plain values."""
    built_file = out / "built.json"
    if name == "build":
        built_file.unlink(missing_ok=True)
    elif not built_file.is_file():
        return {"status": "not available", "reason": "the plugin was not built: see the part build"}

    import gpu_parts

    try:
        if name == "build":
            built, found = importlib.import_module("part_build").build(out, rehearse=rehearse)
            built_file.write_text(json.dumps(dataclasses.asdict(built), default=str))
        else:
            values = json.loads(built_file.read_text())
            paths = {key: Path(values[key]) for key in ("plugin", "harness", "cache")}
            found = importlib.import_module(f"part_{name}").run(gpu_parts.Built(**{**values, **paths}))
        unavailable = ""
    except gpu_parts.NotAvailable as reason:
        found, unavailable = reason.so_far, str(reason)
    status = "failed" if found.failures else "not available" if unavailable else "passed"
    reason = "; ".join(found.failures[:3]) or unavailable
    return {"status": status, "reason": reason, **dataclasses.asdict(found)}


def machine() -> dict[str, str]:
    """The machine's relevant facts; what cannot be asked is left out."""
    facts = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    query = "name,driver_version,memory.total,clocks.max.sm,clocks.max.memory"
    try:
        answer = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        facts["gpu"] = answer.stdout.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        facts["gpu"] = "none (nvidia-smi does not answer)"
    try:
        import torch

        facts["torch"] = f"{torch.__version__}, CUDA {torch.version.cuda}"
    except ModuleNotFoundError:
        facts["torch"] = "not installed"
    return facts


def markdown(report: dict[str, Any]) -> str:
    """The report as a page of tables."""
    lines = ["# GPU check", ""]
    if report["rehearsal"]:
        lines += ["**A rehearsal without a GPU: the plugin ran on the CPU, and nothing was timed.**", ""]
    lines += [f"- {key}: {value}" for key, value in report["machine"].items()]
    lines += ["", "| part | result | seconds | why |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {part['status']} | {part['seconds']} | {part['reason']} |"
        for name, part in report["parts"].items()
    ]
    goals = [goal for part in report["parts"].values() for goal in part.get("goals", [])]
    if goals:
        lines += ["", "## Goals", "", "| goal | met | measured |", "|---|---|---|"]
        lines += [f"| {goal['goal']} | {'yes' if goal['met'] else 'no'} | {goal['measured']} |" for goal in goals]
    for name, part in report["parts"].items():
        if part.get("rows") or part.get("notes"):
            lines += ["", f"## {name}", ""]
            if part.get("rows"):
                lines += [table(part["rows"])]
            lines += [f"\n{note}" for note in part.get("notes", [])]
    return "\n".join(lines) + "\n"


def table(rows: list[dict[str, Any]]) -> str:
    """Rows with the same columns make one table."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row), []).append(row)
    tables = []
    for columns, group in groups.items():
        lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        for row in group:
            cells = (f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values())
            lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


if __name__ == "__main__":
    raise SystemExit(main())
