"""How a session of onnxruntime's own is opened: its options, its bytes, and that it runs where it was asked to.

A provider that is not there is an error, never the CPU instead.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from andrea_export.core.errors import AndreaError, BackendUnavailable, PluginError, RunError
from andrea_export.sessions.onnxruntime.errors import is_out_of_memory, on_one_line, onnxruntime_errors
from andrea_export.sessions.onnxruntime.providers import Provider, provider_availability, provider_row

_FOLDER_OPTION = "session.model_external_initializers_file_folder_path"
_RECORD_OPTION = "session.record_ep_graph_assignment_info"
_REST_OPTION = "session.force_spinning_stop"
_PARALLEL_OPTION = "session.prepack.enable_parallel"
_QUIET = 4  # onnxruntime's log level "fatal": what it says otherwise is repeated in the error we raise


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
    take turns: the one's waiting threads hold the cores the other needs (docs/measurements/cpu-runtime.md)."""
    pools_memory: bool = True
    """Buffers come from onnxruntime's own pool, not from malloc. The threads of an operator that asks for some while it
    runs wait for each other at that pool's lock: attention in fp16 took three times as long
    (docs/measurements/cpu-runtime.md)."""
    operators: Path | None = None
    """A library whose operators run in the place of the graph's functions of their names."""
    profile: Path | None = None
    """onnxruntime writes its profile to files whose names begin so."""


CPU_TUNING = SessionTuning(disabled_optimizers=("SkipLayerNormFusion",), pools_memory=False)
"""onnxruntime would fuse Add and LayerNormalization into a kernel that is eight times slower:
docs/measurements/cpu-runtime.md."""


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
    options = _options(tuning)
    source: str | bytes = str(model) if graph is None else graph
    provider_options: dict[str, str] = {}
    if row.takes_plugins and plugin_library is not None:
        source = bytes_for_tensorrt(model)
        provider_options["trt_extra_plugin_lib_paths"] = _checked_plugin(plugin_library)
    if isinstance(source, bytes):
        options.add_session_config_entry(_FOLDER_OPTION, str(model.parent.resolve()))
    checks_nodes = not allow_cpu_nodes and provider != "cpu"
    if checks_nodes:
        options.add_session_config_entry(_RECORD_OPTION, "1")
    try:
        session = _opened(source, row, options, provider_options, tuning)
    except onnxruntime_errors() as error:
        raise _why_not_opened(error, row, model) from error
    got = session.get_providers()
    if row.plugin_package is None and got[0] != row.ort_name:
        # onnxruntime logs an error and goes on with the CPU; its result would not be the asked provider's.
        raise BackendUnavailable(
            f"provider {row.name}: onnxruntime fell back to {got[0]} (no usable GPU, driver or CUDA libraries)",
            hint="run `andrea-export doctor`, or use --provider cpu",
        )
    if checks_nodes:
        check_assignment(row, session.get_provider_graph_assignment_info())
    return session


def _options(tuning: SessionTuning) -> Any:
    """onnxruntime's options of one session, its logger silenced."""
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
    if tuning.operators is not None:
        try:
            options.register_custom_ops_library(str(tuning.operators.resolve()))
        except onnxruntime_errors() as error:
            raise PluginError(
                f"{tuning.operators} cannot be loaded: {on_one_line(error)}",
                hint="build the bundle on a machine of this kind",
            ) from error
    if tuning.profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(tuning.profile)
    return options


def _opened(
    source: str | bytes, row: Provider, options: Any, provider_options: dict[str, str], tuning: SessionTuning
) -> Any:
    """A session on the provider; one that comes as a library of its own is registered first."""
    import onnxruntime

    if row.plugin_package is not None:
        options.add_provider_for_devices(_registered_devices(row, row.plugin_package), {})
        return onnxruntime.InferenceSession(source, options)
    return onnxruntime.InferenceSession(
        source,
        options,
        providers=[(row.ort_name, provider_options)],
        enable_fallback=0,
        disabled_optimizers=list(tuning.disabled_optimizers),
    )


def _registered_devices(row: Provider, package: str) -> list[Any]:
    """The devices of a provider, its library registered once a process. Raises: BackendUnavailable."""
    import onnxruntime

    if row.ort_name not in {device.ep_name for device in onnxruntime.get_ep_devices()}:
        library = str(importlib.import_module(package).get_library_path())
        try:
            onnxruntime.register_execution_provider_library(row.ort_name, library)
        except onnxruntime_errors() as error:
            raise BackendUnavailable(
                f"provider {row.name}: {on_one_line(error)}", hint="install NVIDIA's driver"
            ) from error
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == row.ort_name]
    if not devices:
        raise BackendUnavailable(f"provider {row.name}: it finds no device here", hint="use --provider cpu")
    return devices


def _why_not_opened(error: Exception, row: Provider, model: Path) -> AndreaError:
    """onnxruntime's refusal as this project's error."""
    if is_out_of_memory(error):
        return BackendUnavailable(f"{model.name}: out of memory", hint="use int8 or int4, or free memory")
    if row.name != "cpu":  # here it is the provider's libraries that are missing, far more often than the file
        return BackendUnavailable(
            f"provider {row.name}: {on_one_line(error)}", hint="run `andrea-export doctor`, or use --provider cpu"
        )
    return RunError(f"onnxruntime cannot load {model}: {on_one_line(error)}")


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

    from andrea_export.graph.passes.gelu_nodes import TrtPluginsDomain
    from andrea_export.graph.passes.graph_edits import run_passes
    from andrea_export.operators.sources import andrea_gelu

    derived = ir.load(model)
    run_passes(derived, TrtPluginsDomain(andrea_gelu()))
    serialized: bytes = ir.to_proto(derived).SerializeToString()
    return serialized


def _checked_plugin(library: Path) -> str:
    """The library's path, its creator looked at first: onnxruntime only warns where a library cannot be loaded."""
    from andrea_export.operators.creators import check_library
    from andrea_export.operators.sources import andrea_gelu

    if not library.is_file():
        raise PluginError(
            f"the tensorrt provider takes each GELU from a plugin, and there is no {library}",
            hint="build the bundle with --target tensorrt or tensorrt-rtx as well",
        )
    check_library(library, andrea_gelu())
    return str(library.resolve())
