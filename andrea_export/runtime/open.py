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
from andrea_export.core.errors import BundleError
from andrea_export.core.hashing import file_identity
from andrea_export.core.names import CONFIG_KEY
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
    folder: Path, files: OrtCpuFiles, config: AndreaConfig, num_threads: int, *, takes_turns: bool = False
) -> SharedCacheDecoder:
    """The decoder on a precision's graphs for the CPU. ``takes_turns``: with another one, run by run.

    Raises: BackendUnavailable, RunError (not loadable), BundleError (of another shape than ``config``).
    """
    weights = folder / (files.weights or WEIGHTS)
    tuning = shared_tuning(files, num_threads, takes_turns=takes_turns)
    decode, prefill = (_session(folder / file, weights, tuning) for file in (files.decode, files.prefill))
    _check_shape(decode, config, folder / files.decode)
    _check_shape(prefill, config, folder / files.prefill)
    return SharedCacheDecoder(
        name=f"onnxruntime-cpu ({Path(files.decode).stem})",
        decode=decode,
        prefill=prefill,
        config=config,
        rows_independent=files.rows_independent,
    )


def shared_tuning(files: OrtCpuFiles, num_threads: int, *, takes_turns: bool = False) -> SessionTuning:
    """What onnxruntime is told of a precision's graphs for the CPU."""
    return replace(
        CPU_TUNING,
        num_threads=num_threads,
        packs_in_parallel=files.weights is None,  # fp32 alone is large enough to be waited for
        rests=takes_turns or files.prefill != files.decode,
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
