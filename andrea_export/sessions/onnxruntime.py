"""onnxruntime behind the Session protocol, one row a provider.

A provider that is not there is an error, never the CPU instead.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea_export.core.errors import BackendUnavailable, PluginError, RunError, UsageError
from andrea_export.sessions.base import Availability, Feeds

_FOLDER_OPTION = "session.model_external_initializers_file_folder_path"
_RECORD_OPTION = "session.record_ep_graph_assignment_info"
_REST_OPTION = "session.force_spinning_stop"
_PARALLEL_OPTION = "session.prepack.enable_parallel"
_QUIET = 4  # onnxruntime's log level "fatal": what it says otherwise is repeated in the error we raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One way to run an ONNX file: onnxruntime's name for it, and the package that brings it."""

    name: str
    ort_name: str
    install: str
    plugin_package: str | None = None
    """A provider that comes as a library of its own, to be registered at run time."""
    takes_plugins: bool = False
    """It runs each GELU by the TensorRT plugin; the others by the function body that is in the file."""


PROVIDERS: dict[str, Provider] = {
    row.name: row
    for row in (
        Provider(name="cpu", ort_name="CPUExecutionProvider", install="pip install 'andrea-export[cpu]'"),
        Provider(
            name="cuda",
            ort_name="CUDAExecutionProvider",
            install="pip uninstall -y onnxruntime; pip install 'andrea-export[gpu]'",
        ),
        Provider(
            name="tensorrt",
            ort_name="TensorrtExecutionProvider",
            install="pip uninstall -y onnxruntime; pip install 'andrea-export[gpu,tensorrt]'",
            takes_plugins=True,
        ),
        Provider(
            name="tensorrt-rtx",
            ort_name="NvTensorRTRTXExecutionProvider",
            install="pip install 'andrea-export[cpu]' onnxruntime-ep-nv-tensorrt-rtx-cu13",
            plugin_package="onnxruntime_ep_nv_tensorrt_rtx",
        ),
    )
}


def provider_row(name: str) -> Provider:
    """The row of a provider. Raises UsageError naming the providers there are."""
    try:
        return PROVIDERS[name]
    except KeyError:
        raise UsageError(f"unknown provider '{name}'", hint=f"providers: {', '.join(PROVIDERS)}") from None


def provider_availability(name: str) -> Availability:
    """Whether a session on this provider can be tried here; only opening one proves that its driver works."""
    row = provider_row(name)
    if importlib.util.find_spec("onnxruntime") is None:
        return Availability(available=False, reason="onnxruntime is not installed", hint=row.install)
    import onnxruntime

    versions = {"onnxruntime": onnxruntime.__version__}
    if row.plugin_package is not None:
        if importlib.util.find_spec(row.plugin_package) is None:
            return Availability(
                available=False,
                reason=f"{row.plugin_package} is not installed",
                hint=row.install,
                versions=versions,
            )
        return Availability(available=True, versions=versions)
    offered = onnxruntime.get_available_providers()
    if row.ort_name not in offered:
        return Availability(
            available=False,
            reason=f"this onnxruntime {versions['onnxruntime']} has no {row.ort_name} (it has {', '.join(offered)})",
            hint=row.install,
            versions=versions,
        )
    return Availability(available=True, versions=versions)


def onnxruntime_version() -> str:
    """The installed version, whichever of the packages brought it; empty if none did. Does not import it."""
    import importlib.metadata

    for package in ("onnxruntime", "onnxruntime-gpu"):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTuning:
    """What onnxruntime is told beside the model; the default is onnxruntime's own."""

    num_threads: int = 0
    """Threads inside an operator; 0 leaves the number to onnxruntime."""
    disabled_optimizers: tuple[str, ...] = ()
    """Graph rewrites it must not make, by onnxruntime's names."""
    packs_in_parallel: bool = False
    """Weights are put into the kernels' order on all threads: opens in half the time, for more pages of the file in
    memory at once."""
    rests: bool = False
    """Its threads sleep as soon as a run ends, rather than wait for the next one at full speed. For two sessions that
    take turns: the one's waiting threads hold the cores the other needs (docs/runtime.md)."""
    pools_memory: bool = True
    """Buffers come from onnxruntime's own pool, not from malloc. The threads of an operator that asks for some while it
    runs wait for each other at that pool's lock: attention in fp16 took three times as long (docs/runtime.md)."""
    profile: Path | None = None
    """onnxruntime writes its profile to files whose names begin so."""


CPU_TUNING = SessionTuning(disabled_optimizers=("SkipLayerNormFusion",), pools_memory=False)
"""onnxruntime would fuse Add and LayerNormalization into a kernel that is eight times slower: docs/runtime.md."""


class OnnxSession:
    """One ONNX file on one provider; with ``taps``, those layers are outputs too (the graph is otherwise as it ships).

    ``graph`` runs another graph, serialised, over the weights beside the file.

    Raises: BackendUnavailable (provider not installed, no driver, silently replaced), RunError (file not loadable).
    """

    def __init__(
        self,
        model: Path,
        provider: str = "cpu",
        *,
        taps: Sequence[str] = (),
        graph: bytes | None = None,
        name: str | None = None,
        tuning: SessionTuning | None = None,
    ) -> None:
        self.name = name or f"onnxruntime-{provider}"
        self._session = open_raw(
            model, provider, tuning=tuning or SessionTuning(), graph=_tapped(model, taps) if taps else graph
        )
        self.output_names = tuple(output.name for output in self._session.get_outputs())
        self.input_names = tuple(entry.name for entry in self._session.get_inputs())

    def input_dtype(self, name: str) -> np.dtype[Any]:
        """The type an input wants. Raises: KeyError."""
        return input_dtype(self._session, name)

    def run(self, feeds: Feeds) -> dict[str, npt.NDArray[Any]]:
        """Every output (and tap). Raises: RunError with onnxruntime's reason."""
        try:
            outputs = self._session.run(None, {name: feeds[name] for name in self.input_names})
        except KeyError as error:
            raise RunError(f"{self.name}: input {error} was not given") from None
        except onnxruntime_errors() as error:
            raise RunError(f"{self.name} cannot run these inputs: {_first_line(error)}") from error
        return dict(zip(self.output_names, outputs, strict=True))

    def close(self) -> None:
        """Releases the session and its weights."""
        del self._session

    def __enter__(self) -> OnnxSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_session(model: Path, provider: str = "cpu") -> OnnxSession:
    """A session on an ONNX file as it ships."""
    return OnnxSession(model, provider)


def open_raw(
    model: Path,
    provider: str,
    *,
    tuning: SessionTuning,
    graph: bytes | None = None,
    plugin_library: Path | None = None,
    allow_cpu_nodes: bool = True,
) -> Any:
    """onnxruntime's own session on an ONNX file, or on a graph over its weights; callers may bind their own buffers.

    ``plugin_library``: what the tensorrt provider takes each GELU from; left out, the function body runs. Without
    ``allow_cpu_nodes`` every node must be on the provider asked for. Raises: BackendUnavailable (not installed, no
    driver, replaced, a node elsewhere), PluginError (no such library, or without the creator), RunError (file not
    loadable).
    """
    row = provider_row(provider)
    availability = provider_availability(provider)
    if not availability.available:
        raise BackendUnavailable(f"provider {provider}: {availability.reason}", hint=availability.hint)
    import onnxruntime

    onnxruntime.set_default_logger_severity(_QUIET)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _QUIET
    options.intra_op_num_threads = tuning.num_threads
    if tuning.packs_in_parallel:
        options.add_session_config_entry(_PARALLEL_OPTION, "1")
    if tuning.rests:
        options.add_session_config_entry(_REST_OPTION, "1")
    if not tuning.pools_memory:
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    if tuning.profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(tuning.profile)
    source: str | bytes = str(model)
    provider_options: dict[str, str] = {}
    if row.takes_plugins and plugin_library is not None:
        source = bytes_for_tensorrt(model)
        provider_options["trt_extra_plugin_lib_paths"] = _checked_plugin(plugin_library)
    elif graph is not None:
        source = graph
    if isinstance(source, bytes):
        options.add_session_config_entry(_FOLDER_OPTION, str(model.parent.resolve()))
    if not allow_cpu_nodes and provider != "cpu":
        options.add_session_config_entry(_RECORD_OPTION, "1")
    try:
        if row.plugin_package is not None:
            session = _open_with_plugin_provider(source, row, options)
        else:
            session = onnxruntime.InferenceSession(
                source,
                options,
                providers=[(row.ort_name, provider_options)],
                enable_fallback=0,
                disabled_optimizers=list(tuning.disabled_optimizers),
            )
    except onnxruntime_errors() as error:
        if is_out_of_memory(error):
            raise BackendUnavailable(f"{model.name}: out of memory", hint="use int8 or int4, or free memory") from error
        if row.name != "cpu":  # here it is the provider's libraries that are missing, far more often than the file
            raise BackendUnavailable(
                f"provider {row.name}: {_first_line(error)}", hint="run `andrea-export doctor`, or use --provider cpu"
            ) from error
        raise RunError(f"onnxruntime cannot load {model}: {_first_line(error)}") from error
    got = session.get_providers()
    if row.plugin_package is None and got[0] != row.ort_name:
        # onnxruntime logs an error and goes on with the CPU; a result from elsewhere than asked is no result.
        raise BackendUnavailable(
            f"provider {row.name}: onnxruntime fell back to {got[0]} (no usable GPU, driver or CUDA libraries)",
            hint="run `andrea-export doctor`, or use --provider cpu",
        )
    if not allow_cpu_nodes and provider != "cpu":
        check_assignment(row, session.get_provider_graph_assignment_info())
    return session


def input_dtype(session: Any, name: str) -> np.dtype[Any]:
    """The type an input of onnxruntime's session wants. Raises: KeyError if it has no such input."""
    types = {entry.name: entry.type for entry in session.get_inputs()}
    word = types[name].removeprefix("tensor(").removesuffix(")")
    return np.dtype("float32" if word == "float" else word)


def check_assignment(row: Provider, subgraphs: Sequence[Any]) -> None:
    """Holds if every node is on the provider asked for. Raises BackendUnavailable naming those that are not.

    ``subgraphs``: what ``InferenceSession.get_provider_graph_assignment_info`` gives.
    """
    elsewhere = [
        f"{node.name} ({node.op_type}) on {subgraph.ep_name}"
        for subgraph in subgraphs
        if subgraph.ep_name != row.ort_name
        for node in subgraph.get_nodes()
    ]
    if elsewhere:
        more = f" and {len(elsewhere) - 8} more" if len(elsewhere) > 8 else ""
        raise BackendUnavailable(
            f"provider {row.name}: {len(elsewhere)} nodes are not on it: {', '.join(elsewhere[:8])}{more}",
            hint="allow it with --allow-cpu-nodes",
        )


def bytes_for_tensorrt(model: Path) -> bytes:
    """The canonical graph as onnxruntime's tensorrt provider finds plugins in it: each GELU in its own domain."""
    import onnx_ir as ir

    from andrea_export.graph.passes.contract import run_passes
    from andrea_export.graph.passes.trt_plugins_domain import TrtPluginsDomain
    from andrea_export.operators.rows import andrea_gelu

    derived = ir.load(model)
    run_passes(derived, TrtPluginsDomain(andrea_gelu()))
    serialized: bytes = ir.to_proto(derived).SerializeToString()
    return serialized


def _checked_plugin(library: Path) -> str:
    """The library's path, its creator looked at first: onnxruntime only warns where a library cannot be loaded."""
    from andrea_export.operators import check_library
    from andrea_export.operators.rows import andrea_gelu

    if not library.is_file():
        raise PluginError(
            f"the tensorrt provider takes each GELU from a plugin, and there is no {library}",
            hint="build the bundle with --target tensorrt or tensorrt-rtx as well",
        )
    check_library(library, andrea_gelu())
    return str(library.resolve())


def _open_with_plugin_provider(source: str | bytes, row: Provider, options: Any) -> Any:
    """A session on a provider that is registered from its own library."""
    import onnxruntime

    assert row.plugin_package is not None
    module = importlib.import_module(row.plugin_package)
    if row.ort_name not in {device.ep_name for device in onnxruntime.get_ep_devices()}:  # once a process
        try:
            onnxruntime.register_execution_provider_library(row.ort_name, str(module.get_library_path()))
        except onnxruntime_errors() as error:
            raise BackendUnavailable(
                f"provider {row.name}: {_first_line(error)}", hint="install NVIDIA's driver"
            ) from error
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == row.ort_name]
    if not devices:
        raise BackendUnavailable(f"provider {row.name}: it finds no device here", hint="use --provider cpu")
    options.add_provider_for_devices(devices, {})
    return onnxruntime.InferenceSession(source, options)


def _tapped(model: Path, taps: Sequence[str]) -> bytes:
    """The graph with taps, its weights still in the file they are in."""
    import onnx_ir as ir

    from andrea_export.graph.passes.taps import AddTaps

    tapped = ir.load(model)
    values = {value.name for node in tapped.graph for value in node.outputs}
    # A layer the file lacks is for the comparison to report as missing, among the others.
    AddTaps([tap for tap in taps if tap in values])(tapped)
    serialized: bytes = ir.to_proto(tapped).SerializeToString()
    return serialized


def is_out_of_memory(error: Exception) -> bool:
    """Whether onnxruntime failed for want of memory, which it says in words only."""
    message = str(error)
    return any(sign in message for sign in ("bad_alloc", "Failed to allocate memory", "out of memory", "PosixThread"))


def onnxruntime_errors() -> tuple[type[Exception], ...]:
    """onnxruntime's exceptions; they share no base of their own, and a bound run raises RuntimeError itself."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    names = (
        "Fail", "InvalidArgument", "NoSuchFile", "NoModel", "EngineError", "RuntimeException", "InvalidProtobuf",
        "ModelLoaded", "NotImplemented", "InvalidGraph", "EPFail",
    )  # fmt: skip
    return (*(getattr(state, name) for name in names), RuntimeError, ValueError)


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:400]
