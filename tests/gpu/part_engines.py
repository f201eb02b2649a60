"""ANDREA-120M engines with the plugin and without: built by the package's own code, as they ship, and timed.

Without a GPU, engines of andrea-tiny are built where that is possible, and cannot be run. The engines stay, with the
number of layers each has, for the part that reads their layers.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from engine_builds import FLAVOURS, PRECISIONS, Model, backend_of, engine_name, flavours_here, model_of, request_of
from gpu_parts import Built, NotAvailable, PartResult

# The goal: with the plugin, at most this much slower than with TensorRT's own GELU.
_SLOWDOWN = 1.05


def run(built: Built, result: PartResult) -> None:
    """One row an engine. Raises: NotAvailable with what is missing, or with what the part's time did not reach."""
    flavours = flavours_here()
    model = model_of(built)
    result.note(f"{model.preset}, seeded weights that are not trained")
    for target in flavours:
        _measure(result, built, model, target)
    if built.device != "cuda":
        raise NotAvailable("torch sees no CUDA GPU on this machine: engines were built, not run")


def _measure(result: PartResult, built: Built, model: Model, target: str) -> None:
    from andrea_export.core.errors import AndreaError
    from andrea_export.core.progress import Silent

    times: dict[bool, dict[str, float]] = {}
    slowest = 0.0
    precisions = PRECISIONS if built.device == "cuda" else PRECISIONS[:1]
    for precision, plugin in itertools.product(precisions, (True, False)):
        name = engine_name(target, precision, plugin=plugin)
        left = result.seconds_left()
        if slowest > left:
            raise NotAvailable(
                f"{name} and what follows: {left:.0f} s were left, the longest before took {slowest:.0f} s"
            )
        began = time.monotonic()
        engine = model.folder / f"{name}.plan"
        library = built.plugin if plugin else None
        row = result.row({"engine": name})
        try:
            request = request_of(model, target, precision, library=library, output=engine, seconds=left)
            facts = backend_of(target)().build(request, Silent())
        except AndreaError as error:
            result.fail(f"{name}: build: {error}")
            return
        row |= {
            "plugin layers": facts.num_plugin_layers,
            "network layers": facts.num_network_layers,
            "build, s": facts.seconds,
        }
        result.keep()
        if built.device != "cuda":
            continue
        timed = _time_engine(engine, FLAVOURS[target])
        if isinstance(timed, str):  # a GPU that TensorRT-RTX does not support ends here, in one line
            result.fail(f"{name}: {timed}")
            return
        shapes = timed["times"]
        engine.with_suffix(".layers").write_text(str(timed["layers"]))
        row |= {"engine layers": timed["layers"], **{f"{shape}, us": value for shape, value in shapes.items()}}
        result.keep()
        times[plugin] = shapes
        if not plugin:
            _compare(result, f"{target} {precision}", times[True], times[False])
        slowest = max(slowest, time.monotonic() - began)


def _compare(result: PartResult, name: str, plugin: dict[str, float], native: dict[str, float]) -> None:
    for shape in plugin:
        ratio = plugin[shape] / native[shape]
        result.goal(
            f"{name} {shape}: with the plugin at most 5 % slower than with native GELU",
            met=ratio <= _SLOWDOWN,
            measured=f"{plugin[shape]:.1f} us against {native[shape]:.1f} us ({ratio - 1:+.1%})",
        )


def _time_engine(engine: Path, module: str) -> dict[str, Any] | str:
    """``{"layers": …, "times": {shape: microseconds}}`` from a process of its own, or the reason why not."""
    program = Path(__file__).with_name("engine_timing.py")
    command = [sys.executable, str(program), str(engine), module]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    answers = [line for line in finished.stdout.splitlines() if line.startswith("{")]
    if finished.returncode != 0 or not answers:
        lines = (finished.stderr.strip() or finished.stdout.strip() or "no output").splitlines()
        return f"timing: exit code {finished.returncode}: {lines[-1]}"
    answer: dict[str, Any] = json.loads(answers[-1])
    return answer
