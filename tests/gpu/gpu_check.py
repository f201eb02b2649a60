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
import os
import platform
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

# Each part's share of the time, in seconds: 340 together, which leaves 20 for what is outside the parts, so that the
# whole ends in under six minutes (joining wheels that were carried over comes before it). What a part leaves over goes
# to those after it, and none can use up theirs. Accuracy comes first, then the figures, and last what explains them.
PARTS = {
    "build": 50,
    "accuracy": 55,
    "timing": 35,
    "model": 20,
    "engines": 75,
    "layers": 40,
    "sanitizer": 50,
    "variants": 15,
}
# A rehearsal runs on whatever CPU is there and promises no time.
_REHEARSAL_FACTOR = 10


def main() -> int:
    """Runs the parts; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--only", help=argparse.SUPPRESS)  # the part this process is
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)  # and after which it is stopped
    arguments = parser.parse_args()
    out: Path = arguments.out.resolve()
    if arguments.only:
        run_part(arguments.only, out, rehearse=arguments.rehearse, seconds=arguments.seconds)
        return 0
    asked = arguments.parts.split(",")
    unknown = [name for name in asked if name not in PARTS]
    if unknown:
        parser.error(f"unknown part {', '.join(unknown)}; parts: {', '.join(PARTS)}")
    out.mkdir(parents=True, exist_ok=True)
    results = {}
    deadline = time.monotonic()
    for name in PARTS:
        if name not in asked:
            continue
        sys.stderr.write(f"{name} … ")
        sys.stderr.flush()
        deadline += PARTS[name] * (_REHEARSAL_FACTOR if arguments.rehearse else 1)
        seconds = deadline - time.monotonic()
        results[name] = start_part(name, out, rehearse=arguments.rehearse, seconds=seconds)
        sys.stderr.write(f"{results[name]['status']} ({results[name]['seconds']:.1f} s) {results[name]['reason']}\n")
    report = {"machine": machine(), "rehearsal": arguments.rehearse, "parts": results}
    (out / "gpu_check.json").write_text(json.dumps(report, indent=2) + "\n")
    (out / "gpu_check.md").write_text(markdown(report))
    sys.stdout.write(f"{out / 'gpu_check.json'}\n{out / 'gpu_check.md'}\n")
    return 1 if any(part["status"] == "failed" for part in results.values()) else 0


def start_part(name: str, out: Path, *, rehearse: bool, seconds: float) -> dict[str, Any]:
    """The part's result, from a process that may crash, hang or be missing what it needs.

    A process that has no result of its own left what it had found until then.
    """
    file, found, log = result_file(out, name), findings_file(out, name), out / f"part_{name}.log"
    for leftover in (file, found):
        leftover.unlink(missing_ok=True)
    command = [sys.executable, str(Path(__file__).resolve()), str(out), "--only", name, "--seconds", str(seconds)]
    began = time.monotonic()
    # Into a file: whatever the part has started may outlive it, and would hold a pipe open. In a session of its own, so
    # that all of it can be ended.
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *(["--rehearse"] if rehearse else [])],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=seconds)
            said = (log.read_text(errors="replace").strip() or "no output").splitlines()[-1]
            died = f"exit code {code}: {said}"
        except subprocess.TimeoutExpired:
            died = f"not finished in {seconds:.0f} s"
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    taken = round(time.monotonic() - began, 1)
    if file.is_file():
        result: dict[str, Any] = json.loads(file.read_text())
    else:
        so_far = json.loads(found.read_text()) if found.is_file() else {}
        result = {"status": "failed", "reason": "; ".join([died, *so_far.get("failures", [])[:3]]), **so_far}
    for leftover in (file, found):
        leftover.unlink(missing_ok=True)
    return {**result, "seconds": taken}


def result_file(out: Path, name: str) -> Path:
    """Where a part's process writes its result."""
    return out / f"part_{name}.json"


def findings_file(out: Path, name: str) -> Path:
    """Where a part's process writes what it has found, as it finds it."""
    return out / f"part_{name}.findings.json"


def run_part(name: str, out: Path, *, rehearse: bool, seconds: float | None = None) -> None:
    """Runs one part in this process, which is stopped after `seconds`, and writes its result."""
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    try:
        result = part_result(name, out, rehearse=rehearse, seconds=seconds)
    except ModuleNotFoundError as error:
        result = {"status": "not available", "reason": missing_module(error)}
    result_file(out, name).write_text(json.dumps(result, default=str))


def missing_module(error: ModuleNotFoundError) -> str:
    """Why a part is not available."""
    return f"the module {error.name} cannot be imported"


def part_result(name: str, out: Path, *, rehearse: bool, seconds: float | None) -> dict[str, Any]:
    """The part's result as plain values. Raises: ModuleNotFoundError without torch."""
    built_file = out / "built.json"
    if name == "build":
        built_file.unlink(missing_ok=True)
    elif not built_file.is_file():
        return {"status": "not available", "reason": "the plugin was not built: see the part build"}

    import gpu_parts

    found = gpu_parts.PartResult(file=findings_file(out, name))
    if seconds is not None:
        found.deadline = time.monotonic() + seconds
    unavailable = ""
    try:
        if name == "build":
            built = importlib.import_module("part_build").build(out, found, rehearse=rehearse)
            built_file.write_text(json.dumps(dataclasses.asdict(built), default=str))
        else:
            values = json.loads(built_file.read_text())
            paths = {key: Path(values[key]) for key in ("plugin", "harness", "cache")}
            importlib.import_module(f"part_{name}").run(gpu_parts.Built(**{**values, **paths}), found)
    except gpu_parts.NotAvailable as reason:
        unavailable = str(reason)
    except ModuleNotFoundError as error:
        unavailable = missing_module(error)
    except Exception as error:  # one part's failure must not hide the others' results, nor its own until then
        traceback.print_exc()
        found.fail(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
    status = "failed" if found.failures else "not available" if unavailable else "passed"
    reason = "; ".join(found.failures[:3]) or unavailable
    return {"status": status, "reason": reason, **found.values()}


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
