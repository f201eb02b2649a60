"""ANDREA-120M engines with the plugin and without: built, compared with torch layer by layer, and timed.

Uses the package's own commands, so what is measured is what users get; needs TensorRT or TensorRT-RTX and the package's
dependencies on this machine. The engines' inner layers are read through debug tensors, in engines built the same way
with those marks added: fusion stays as it ships, and a layer that it took away is named.

Without a GPU, engines of andrea-tiny are built where that is possible, and cannot be run.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_parts import REPOSITORY, Built, NotAvailable, PartResult, gpu_architecture

if TYPE_CHECKING:
    from andrea_export.recipe import PrecisionName

_FLAVOURS = {"tensorrt-rtx": "tensorrt_rtx", "tensorrt": "tensorrt"}
_SECONDS = 300
_PRECISIONS: tuple[PrecisionName, ...] = ("fp32", "fp16")
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
    result = PartResult()
    for target in flavours:
        _read_layers(result, built, target)
    if built.device != "cuda":
        raise NotAvailable("torch sees no CUDA GPU on this machine: engines were built, not run", result)
    for target in flavours:
        _measure(result, built, target)
    return result


def _read_layers(result: PartResult, built: Built, target: str) -> None:
    """One row an engine: it has the same layers with debug tensors as without, and each layer it shows is torch's."""
    from debug_worker import COMMAND
    from engine_layers import compare_layers

    from andrea_export.backends.base import EngineRequest
    from andrea_export.backends.tensorrt import TensorRT, TensorRTRTX
    from andrea_export.canonical import export_canonical
    from andrea_export.checkpoint import load_model
    from andrea_export.diff.cases import seeded_cases
    from andrea_export.errors import AndreaError, BackendUnavailable
    from andrea_export.progress import Silent
    from andrea_export.recipe import Profile
    from andrea_export.specs import layer_names

    preset = "andrea-120m" if built.device == "cuda" else "andrea-tiny"
    loaded = load_model(preset=preset, checkpoint=None, seed=0)
    backend = TensorRTRTX if target == TensorRTRTX.target else TensorRT
    folder = built.cache / f"layers-{target}"
    folder.mkdir(parents=True, exist_ok=True)
    model = export_canonical(loaded, folder)
    result.notes.append(f"{target}: layers of {preset}, seeded weights that are not trained")
    precisions = _PRECISIONS if built.device == "cuda" else _PRECISIONS[:1]
    for precision, library in itertools.product(precisions, (built.plugin, None)):
        name = f"{target}-{precision}{'' if library else '-native'}"
        request = EngineRequest(
            model=model,
            config=loaded.config,
            target=backend.target,
            precision=precision,
            profile=Profile(),
            tf32=False,
            plugin_library=library,
            timeout_s=_SECONDS,
            output=folder / f"{name}.plan",
        )
        row: dict[str, Any] = {"engine": name}
        result.rows.append(row)
        try:
            shipped = backend().build(request, Silent())
            marked = backend(worker=COMMAND).build(request, Silent())
            row |= {"plugin layers": marked.num_plugin_layers, "network layers": marked.num_network_layers}
            counts = (shipped.num_plugin_layers, shipped.num_network_layers)
            same = counts == (marked.num_plugin_layers, marked.num_network_layers)
            result.expect(same, f"{name}: {counts} plugin and network layers, other than with debug tensors")
            if built.device != "cuda":  # small, and all that can be seen of them
                plan, names = request.output.read_bytes(), tuple(layer_names(loaded.config))
                row["layers named in the plan"] = f"{sum(name.encode() in plan for name in names)} of {len(names)}"
            with backend(worker=COMMAND).open(request.output) as session:
                found = compare_layers(session, loaded.model, seeded_cases(loaded.config), precision)
        except BackendUnavailable as reason:
            row["layer by layer"] = f"not available: {reason}"
            continue
        except AndreaError as error:  # a GPU that TensorRT-RTX does not support ends here, in one line
            result.failures.append(f"{name}: {error}")
            continue
        finally:
            request.output.unlink(missing_ok=True)
        row |= {
            "layers compared": len(found.compared),
            "out of budget": ", ".join(found.out_of_budget) or "none",
            "largest share of its budget": found.worst_share,
            "of layer": found.worst_layer,
        }
        result.expect(not found.out_of_budget, f"{name}: out of budget: {', '.join(found.out_of_budget)}")
        if found.not_seen:
            result.notes.append(f"{name}: fused away, not compared: {', '.join(found.not_seen)}")
        if found.others:
            result.notes.append(
                f"{name}: {len(found.others)} tensors of the builder's own: {', '.join(found.others[:8])}"
            )


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
