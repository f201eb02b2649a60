"""TensorRT and TensorRT-RTX: one class for both, which differ in data (``flavours``). This file imports neither.

Owns what a build is asked for and what it proves, and a session on an engine; the work of both is done by a child
process (``worker``). A session's arrays go to it and come back through files.
"""

import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea_export.core.dtypes import DTYPES, dtype_from_numpy
from andrea_export.core.errors import AndreaError, BackendUnavailable, BuildError, PluginError, RunError, UsageError
from andrea_export.core.installed import installed_version, why_no_gpu
from andrea_export.core.names import gelu_layers
from andrea_export.core.precision import PRECISIONS
from andrea_export.core.progress import Progress
from andrea_export.operators.sources import andrea_gelu
from andrea_export.sessions.base import Availability, Feeds, Session
from andrea_export.targets.tensorrt.child import WORKER_COMMAND, Child
from andrea_export.targets.tensorrt.facts import EngineFacts, EngineRequest, profile_shapes
from andrea_export.targets.tensorrt.flavours import FLAVOURS, EngineTarget
from andrea_export.targets.tensorrt.model import EngineModel, derive_engine_model


class EngineBackend:
    """Builds and runs the engines of one target. ``worker`` is the child's command; tests put faults in its place."""

    def __init__(self, target: EngineTarget, worker: Sequence[str] = WORKER_COMMAND) -> None:
        self.target = target
        self.flavour = FLAVOURS[target]
        self._worker = tuple(worker)

    def can_build(self) -> Availability:
        """Whether the package is here and, for TensorRT, a GPU, without which its builder does not start."""
        flavour = self.flavour
        no_gpu = "" if flavour.builds_without_gpu else why_no_gpu()
        if importlib.util.find_spec(flavour.module) is None:
            missing = f"the package {flavour.module} is not installed"
            if no_gpu:  # installing it would not be enough
                return Availability(available=False, reason=f"{missing}, and it {no_gpu}", hint=_GPU_HINT)
            return Availability(available=False, reason=missing, hint=f"pip install 'andrea-export[{flavour.extra}]'")
        versions = {flavour.module: installed_version(*flavour.distributions) or "unknown"}
        return Availability(available=not no_gpu, reason=no_gpu, hint=_GPU_HINT if no_gpu else None, versions=versions)

    def can_run(self) -> Availability:
        """Whether the package, the driver and a GPU are here."""
        build = self.can_build()
        if build.available and (reason := why_no_gpu()):
            return Availability(available=False, reason=reason, hint=_GPU_HINT, versions=build.versions)
        return build

    def build(self, request: EngineRequest, progress: Progress) -> EngineFacts:
        """Builds ``request.output``, which appears only once everything about it is proven.

        Raises: BackendUnavailable, UsageError (a profile the model cannot have, no folder), PassError (not a
        canonical model), PluginError (a library without the plugin), BuildError (failed, crashed, out of time or
        memory, unproven).
        """
        start = time.monotonic()
        self._require(self.can_build(), f"build {request.target} engines")
        if not request.output.parent.is_dir():
            raise UsageError(f"{request.output.parent} is not a folder: an engine cannot be written there")
        precision = PRECISIONS[request.precision]
        asked = {
            "profile": profile_shapes(request.config, precision, request.profile),
            "plugin": _plugin_asked_for(request.plugin_library),
            "tf32": request.tf32,
            # TensorRT has no fused kernel for fp32 attention. A bf16 one must have: decomposed by the builder, its
            # scores would be stored in bf16. (An fp16 one comes without Attention nodes.)
            "decomposable_attention": precision.compute_dtype == "fp32",
        }
        detail = partial(progress.detail, f"engine {request.output.stem}")
        # Beside the output, so that the engine can be renamed into place.
        with (
            tempfile.TemporaryDirectory(prefix=f".{request.output.name}-", dir=request.output.parent) as scratch,
            self._child(Path(scratch), BuildError) as child,
        ):

            def ask(verb: str, **arguments: Any) -> dict[str, Any]:
                seconds_left = max(request.timeout_s - (time.monotonic() - start), 0.0)
                return child.ask(verb, arguments, timeout_s=seconds_left, detail=detail)

            description = ask("describe")
            detail(f"deriving the {request.precision} graph")
            derived = _derived(request, Path(scratch), parser_knows_attention=description["attention_node"])
            engine = Path(scratch) / "engine.plan"
            facts = ask("build", model=str(derived.path), output=str(engine), gelu_layers=derived.gelu_layers, **asked)
            engine.replace(request.output)
        return EngineFacts(
            target=request.target,
            precision=request.precision,
            num_gelu_nodes=len(derived.gelu_layers),
            tensorrt_version=facts.pop("version"),
            seconds=time.monotonic() - start,
            **facts,
        )

    def open(self, engine: Path) -> Session:
        """A session on an engine, in a child process of its own. Raises: BackendUnavailable, RunError."""
        self._require(self.can_run(), f"run {self.target} engines")
        if not engine.is_file():
            raise RunError(f"engine {engine}: no such file")
        return EngineSession(engine=engine, start_child=lambda folder: self._child(folder, RunError))

    def _require(self, availability: Availability, what: str) -> None:
        if not availability.available:
            raise BackendUnavailable(f"cannot {what}: {availability.reason}", hint=availability.hint)

    @contextmanager
    def _child(self, folder: Path, failure: type[AndreaError]) -> Iterator[Child]:
        environment: dict[str, str | None] = {"POLYGRAPHY_USE_TENSORRT_RTX": self.flavour.polygraphy_rtx}
        # In the system's temporary folder: a colon or semicolon in the output's own path would split the library path.
        with tempfile.TemporaryDirectory(prefix="andrea-export-") as private:
            if (libraries := _unversioned_rtx_library(Path(private))) is not None:
                inherited = os.environ.get("LD_LIBRARY_PATH")  # extended for the child alone
                environment["LD_LIBRARY_PATH"] = f"{libraries}:{inherited}" if inherited else str(libraries)
            with Child(
                product=self.flavour.product,
                command=self._worker,
                environment=environment,
                folder=folder,
                failure=failure,
            ) as child:
                yield child


def _plugin_asked_for(library: Path | None) -> dict[str, str] | None:
    """The plugin as the worker is asked to load it; None for the native twin. Raises: PluginError."""
    if library is None:
        return None
    if not library.is_file():
        raise PluginError(f"plugin library {library}: no such file")
    op = andrea_gelu()
    return {
        "library": str(library.resolve()),
        "name": op.op_type,
        "version": op.plugin_version,
        "namespace": op.plugin_namespace,
    }


def _derived(request: EngineRequest, folder: Path, *, parser_knows_attention: bool) -> EngineModel:
    """The file that the engine is built from, with every GELU of the model. Raises: PassError, BuildError."""
    derived = derive_engine_model(
        request.model,
        precision=PRECISIONS[request.precision],
        plugin=request.plugin_library is not None,
        parser_knows_attention=parser_knows_attention,
        folder=folder,
    )
    expected = gelu_layers(request.config)
    if derived.gelu_layers != expected:
        raise BuildError(
            f"{request.model} has GELUs {', '.join(derived.gelu_layers)}, expected {', '.join(expected)}",
            hint="export the model again",
        )
    return derived


# --- this machine -----------------------------------------------------------------------------------------------------

_GPU_HINT = (
    "install an NVIDIA GPU and its driver, or use another machine; engines for tensorrt-rtx are built without one"
)


def _unversioned_rtx_library(folder: Path) -> Path | None:
    """A folder holding ``libtensorrt_rtx.so``, to be put on the child's library path; None where it is not needed.

    Workaround for tensorrt-rtx 1.7.1.116: its ONNX parser opens ``libtensorrt_rtx.so`` by that name at the first
    plugin node, the wheel ships only ``libtensorrt_rtx.so.1``, and the process ends with "terminate called without an
    active exception". To be removed when the wheel ships the name its parser opens, or the parser opens the name the
    wheel ships.
    """
    spec = importlib.util.find_spec("tensorrt_rtx_libs")
    if spec is None or not spec.submodule_search_locations:
        return None
    shipped = Path(spec.submodule_search_locations[0])
    if not (shipped / "libtensorrt_rtx.so.1").is_file() or (shipped / "libtensorrt_rtx.so").exists():
        return None
    libraries = folder / "lib"
    libraries.mkdir()
    (libraries / "libtensorrt_rtx.so").symlink_to(shipped / "libtensorrt_rtx.so.1")
    return libraries


# TensorRT-RTX compiles an engine's kernels when it is opened and first run; minutes, on a slow machine.
_OPEN_TIMEOUT_S = 600
_RUN_TIMEOUT_S = 600


class EngineSession(Session):
    """Runs one engine in its child process. Named after the engine's file: ``tensorrt-rtx-fp16``."""

    def __init__(self, *, engine: Path, start_child: Callable[[Path], AbstractContextManager[Child]]) -> None:
        self.name = engine.stem
        with ExitStack() as held:
            self._folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="andrea-export-")))
            self._child = held.enter_context(start_child(self._folder))
            opened = self._child.ask(
                "open", {"engine": str(engine.resolve())}, timeout_s=_OPEN_TIMEOUT_S, detail=_quiet
            )
            self._held = held.pop_all()
        self.output_names: tuple[str, ...] = tuple(opened["outputs"])

    def run(self, feeds: Feeds) -> dict[str, npt.NDArray[Any]]:
        layouts = {}
        for index, (name, array) in enumerate(feeds.items()):
            file = self._folder / f"input-{index}"
            file.write_bytes(np.ascontiguousarray(array).tobytes())
            try:
                dtype = dtype_from_numpy(array.dtype)
            except KeyError as error:
                raise RunError(f"input {name}: {error.args[0]}") from None
            layouts[name] = {"dtype": dtype.name, "shape": list(array.shape), "file": str(file)}
        outputs = self._child.ask(
            "run", {"feeds": layouts, "folder": str(self._folder)}, timeout_s=_RUN_TIMEOUT_S, detail=_quiet
        )
        return {
            name: np.fromfile(layout["file"], DTYPES[layout["dtype"]].numpy).reshape(layout["shape"])
            for name, layout in outputs.items()
        }

    def close(self) -> None:
        """Ends the child process and removes its folder."""
        self._held.close()


def _quiet(text: str) -> None:
    """A session's warnings have no one to be told to; errors become RunError with the log's path."""
