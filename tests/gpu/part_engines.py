"""ANDREA-120M engines with the plugin and without: built, compared with torch layer by layer, and timed.

Uses the package's own commands, so what is measured is what users get; needs TensorRT or TensorRT-RTX and the package's
dependencies on this machine.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpu_parts import REPOSITORY, Built, NotAvailable, PartResult, gpu_architecture

_FLAVOURS = {"tensorrt-rtx": "tensorrt_rtx", "tensorrt": "tensorrt"}
_SECONDS = 300
_PRECISIONS = ("fp32", "fp16")
# The goal: with the plugin, at most this much slower than with TensorRT's own GELU.
_SLOWDOWN = 1.05


def run(built: Built) -> PartResult:
    """One row an engine and shape. Raises: NotAvailable with what is missing."""
    flavours = [target for target, module in _FLAVOURS.items() if importlib.util.find_spec(module) is not None]
    if not flavours:
        raise NotAvailable("neither tensorrt_rtx nor tensorrt can be imported")
    missing = [
        name
        for name in ("onnx_ir", "onnxscript", "polygraphy", "pydantic", "rich", "safetensors", "typer")
        if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise NotAvailable(f"the package's dependencies {', '.join(missing)} cannot be imported")
    if built.device != "cuda":
        raise NotAvailable("torch sees no CUDA GPU on this machine")
    result = PartResult()
    for target in flavours:
        _measure(result, built, target)
    return result


def _measure(result: PartResult, built: Built, target: str) -> None:
    bundle = built.cache / f"bundle-{target}"
    recipe = built.cache / f"{target}.toml"
    recipe.parent.mkdir(parents=True, exist_ok=True)
    precisions = ", ".join(f'"{name}"' for name in _PRECISIONS)
    recipe.write_text(
        f'preset = "andrea-120m"\ntargets = ["onnx", "{target}"]\nprecisions = [{precisions}]\n'
        f'native_twin = true\ncuda_architectures = ["{gpu_architecture()}-real"]\n'
    )
    build = _command("build", str(bundle), "--recipe", str(recipe), "--json")
    if build.returncode != 0:
        # A GPU that TensorRT-RTX does not support ends here, in one line.
        result.failures.append(f"{target}: build: {_last_line(build)}")
        return
    validate = _command("validate", str(bundle), "--json")
    report = json.loads(validate.stdout) if validate.stdout.lstrip().startswith("{") else {}
    for candidate in report.get("candidates", []):
        if candidate.get("name", "").startswith(target):
            result.rows.append(
                {
                    "engine": candidate["name"],
                    "layer by layer": candidate.get("verdict"),
                    "why": candidate.get("reason"),
                }
            )
            result.expect(candidate.get("verdict") == "pass", f"{candidate['name']}: {candidate.get('verdict')}")
    result.expect(bool(report), f"{target}: validate: {_last_line(validate)}")
    times: dict[str, dict[str, float]] = {}
    for engine in sorted((bundle / "engines").glob(f"{target}-*.plan")):
        timed = _time_engine(engine, _FLAVOURS[target])
        if isinstance(timed, str):
            result.failures.append(f"{engine.stem}: {timed}")
            continue
        times[engine.stem] = timed
        result.rows.append({"engine": engine.stem, **{f"{shape}, us": value for shape, value in timed.items()}})
    for precision in _PRECISIONS:
        plugin, native = times.get(f"{target}-{precision}"), times.get(f"{target}-{precision}-native")
        if plugin is None or native is None:
            continue
        for shape in plugin:
            ratio = plugin[shape] / native[shape]
            result.goal(
                f"{target} {precision} {shape}: with the plugin at most 5 % slower than with native GELU",
                met=ratio <= _SLOWDOWN,
                measured=f"{plugin[shape]:.1f} us against {native[shape]:.1f} us ({ratio - 1:+.1%})",
            )


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = f"{REPOSITORY}:{REPOSITORY / 'model'}:{os.environ.get('PYTHONPATH', '')}"
    return subprocess.run(
        [sys.executable, "-c", "from andrea_export.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=_SECONDS,
        check=False,
    )


def _time_engine(engine: Path, module: str) -> dict[str, float] | str:
    """Microseconds a shape, from a process of its own, or the reason why not."""
    program = Path(__file__).with_name("engine_timing.py")
    finished = subprocess.run(
        [sys.executable, str(program), str(engine), module],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    answers = [line for line in finished.stdout.splitlines() if line.startswith("{")]
    if finished.returncode != 0 or not answers:
        return f"timing: {_last_line(finished)}"
    answer: dict[str, Any] = json.loads(answers[-1])
    return {shape: float(value) for shape, value in answer.items()}


def _last_line(finished: subprocess.CompletedProcess[str]) -> str:
    lines = (finished.stderr.strip() or finished.stdout.strip() or "no output").splitlines()
    return f"exit code {finished.returncode}: {lines[-1]}"
