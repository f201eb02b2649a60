"""Opens onnxruntime sessions for the runtime: which file, which options, and which one is open already."""

from __future__ import annotations

import json
import os
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

from andrea_export.bundle.layout import MANIFEST, MODEL, PLUGIN, WEIGHTS
from andrea_export.core.errors import BundleError, PluginError
from andrea_export.core.hashing import file_identity
from andrea_export.core.names import CONFIG_KEY
from andrea_export.operators.cpu_path import cpu_path
from andrea_export.runtime.growing_cache import GrowingCacheDecoder
from andrea_export.runtime.shared_cache import SharedCacheDecoder
from andrea_export.sessions.onnxruntime import CPU_TUNING, SessionTuning, open_raw
from andrea_export.targets.ort_cpu.files import OrtCpuFiles
from andrea_model.config import AndreaConfig

# Sessions somebody holds, by the bytes and the options they were made from. A session may run on several threads at
# once, and buffers and bindings are not in it: so a second model on the same bundle costs neither a second copy of the
# weights nor the time to pack them.
_open_sessions: weakref.WeakValueDictionary[tuple[object, ...], Any] = weakref.WeakValueDictionary()
_opening = threading.Lock()
# In a forked process, its parent's: one that is released waits for threads that are not there.
_of_the_parent: list[Any] = []


def _forget_after_fork() -> None:
    """A forked process has none of the threads its parent's sessions have, and maybe a lock that nobody will open."""
    global _opening
    _opening = threading.Lock()
    _of_the_parent.extend(_open_sessions.values())
    _open_sessions.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


def open_shared(
    folder: Path,
    files: OrtCpuFiles,
    config: AndreaConfig,
    num_threads: int,
    *,
    library: Path | None,
    takes_turns: bool = False,
) -> SharedCacheDecoder:
    """The decoder on a precision's graph for the CPU. ``library``: what has its operators, None where there is none.

    Where there is none, or it cannot be loaded, the graph's functions run, and the decoder's ``passed_over`` says so.
    ``takes_turns``: with another one, run by run. Raises: BackendUnavailable, RunError (not loadable), BundleError (of
    another shape than ``config``).
    """
    weights = folder / (files.weights or WEIGHTS)
    name, passed_over = Path(files.graph).stem, ""
    if files.weights is None:
        library = None
    elif library is None:
        passed_over = "the operators for the CPU, which this bundle was built without"
    else:
        try:
            name += f", {cpu_path(library)}"
        except PluginError as error:
            library, passed_over = None, str(error)
    tuning = shared_tuning(files, num_threads, library=library, takes_turns=takes_turns)
    session = _session(folder / files.graph, weights, tuning)
    _check_shape(session, config, folder / files.graph)
    decoder = SharedCacheDecoder(name=f"onnxruntime-cpu ({name})", session=session, config=config)
    if passed_over:
        decoder.passed_over = (f"{passed_over}; {name} computes by its functions, several times slower",)
    return decoder


def shared_tuning(
    files: OrtCpuFiles, num_threads: int, *, library: Path | None, takes_turns: bool = False
) -> SessionTuning:
    """What onnxruntime is told of a precision's graph for the CPU."""
    return replace(
        CPU_TUNING,
        num_threads=num_threads,
        packs_in_parallel=files.weights is None,  # fp32 alone is packed
        rests=takes_turns,
        operators=library,
    )


def open_growing(
    folder: Path, provider: str, config: AndreaConfig, num_threads: int, allow_cpu_nodes: bool
) -> GrowingCacheDecoder:
    """The decoder on the canonical graph.

    Raises: BackendUnavailable (also for a node elsewhere), RunError, BundleError (of another shape than ``config``).
    """
    session = open_raw(
        folder / MODEL,
        provider,
        # The pool's lock does not matter here: this graph's attention is fp32, and malloc would make its peak larger.
        tuning=replace(CPU_TUNING, num_threads=num_threads, pools_memory=True),
        plugin_library=folder / PLUGIN,
        allow_cpu_nodes=allow_cpu_nodes,
    )
    _check_shape(session, config, folder / MODEL)
    return GrowingCacheDecoder(
        name=f"onnxruntime-{provider} (model)",
        session=session,
        config=config,
        device="cpu" if provider == "cpu" else "cuda",
    )


def _check_shape(session: Any, config: AndreaConfig, graph: Path) -> None:
    """Raises BundleError where a graph says that it is of another shape: the first token would tell it less well."""
    said = session.get_modelmeta().custom_metadata_map.get(CONFIG_KEY)
    if said != json.dumps(config.stated()):
        raise BundleError(
            f"{graph} is not of the shape that {MANIFEST} describes", hint="build it again, or copy it again whole"
        )


def _session(graph: Path, weights: Path, tuning: SessionTuning) -> Any:
    """The session on these files as they are now: the open one, if there is one, else a new one. Raises: RunError."""
    with _opening:
        try:
            key = (graph.resolve(), file_identity(graph), weights.resolve(), file_identity(weights), tuning)
        except OSError:  # not there: onnxruntime says so, with its name
            return open_raw(graph, "cpu", tuning=tuning)
        session = _open_sessions.get(key)
        if session is None:
            session = _open_sessions[key] = open_raw(graph, "cpu", tuning=tuning)
        return session
