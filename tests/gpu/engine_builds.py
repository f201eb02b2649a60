"""What the engine parts build: which TensorRT is here, the model, and the request for one engine of it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_parts import Built, NotAvailable

if TYPE_CHECKING:
    from andrea_export.core.precision import EnginePrecision
    from andrea_export.targets.tensorrt.backend import EngineBackend
    from andrea_export.targets.tensorrt.facts import EngineRequest
    from andrea_export.weights.load import LoadedModel

FLAVOURS = {"tensorrt-rtx": "tensorrt_rtx", "tensorrt": "tensorrt"}
# What is timed, in this order; the layers of the first are read.
PRECISIONS: tuple[EnginePrecision, ...] = ("fp16", "fp32")
_NEEDED = ("onnx_ir", "onnxscript", "polygraphy", "pydantic", "rich", "safetensors", "typer")


def flavours_here() -> list[str]:
    """The targets whose TensorRT can be imported, at least one. Raises: NotAvailable with what is missing."""
    flavours = [target for target, module in FLAVOURS.items() if importlib.util.find_spec(module) is not None]
    if not flavours:
        raise NotAvailable("neither tensorrt_rtx nor tensorrt can be imported")
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise NotAvailable(f"the package's dependencies {', '.join(missing)} cannot be imported")
    return flavours


def backend_of(target: str) -> Callable[..., EngineBackend]:
    """What builds and opens this target's engines, to be given a worker or nothing."""
    from andrea_export.targets.tensorrt.backend import EngineBackend

    return partial(EngineBackend, target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The model whose engines are built, seeded and not trained: ANDREA-120M, in a rehearsal andrea-tiny."""

    preset: str
    loaded: LoadedModel
    file: Path
    folder: Path
    """Where its engines go."""


def model_of(built: Built) -> Model:
    """The model and its canonical file, exported once for all parts."""
    from andrea_export.graph.canonical.export import export_canonical
    from andrea_export.weights.load import load_model

    preset = "andrea-120m" if built.device == "cuda" else "andrea-tiny"
    folder = built.cache / f"engines-{preset}"
    folder.mkdir(parents=True, exist_ok=True)
    loaded = load_model(preset=preset, checkpoint=None, seed=0)
    exported, file = folder / "exported", folder / "model.onnx"
    if not exported.is_file():  # written last: a part may have been stopped in its export
        file = export_canonical(loaded, folder)
        exported.touch()
    return Model(preset=preset, loaded=loaded, file=file, folder=folder)


def engine_name(target: str, precision: EnginePrecision, *, plugin: bool) -> str:
    """The engine's name, as in a bundle: ``tensorrt-rtx-fp16``, and ``…-native`` without the plugin."""
    return f"{target}-{precision}{'' if plugin else '-native'}"


def request_of(
    model: Model, target: str, precision: EnginePrecision, *, library: Path | None, output: Path, seconds: float
) -> EngineRequest:
    """One engine with the package's own settings, to be built in at most `seconds`."""
    from andrea_export.core.profile import Profile
    from andrea_export.targets.tensorrt.facts import EngineRequest

    return EngineRequest(
        model=model.file,
        config=model.loaded.config,
        target=target,
        precision=precision,
        profile=Profile(),
        tf32=False,
        plugin_library=library,
        timeout_s=max(1, int(min(seconds, 3600))),
        output=output,
    )
