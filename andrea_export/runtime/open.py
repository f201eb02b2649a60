"""Opens onnxruntime sessions for the runtime: which file, which options, and where every node really went."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from andrea_export.backends.onnxruntime import CPU_TUNING, open_raw
from andrea_export.ort_cpu_files import OrtCpuFiles
from andrea_export.runtime.growing_cache import GrowingCacheEngine
from andrea_export.runtime.shared_cache import SharedCacheEngine
from andrea_model.config import AndreaConfig


def open_shared(folder: Path, files: OrtCpuFiles, config: AndreaConfig, num_threads: int) -> SharedCacheEngine:
    """The engine on a precision's graphs for the CPU. Raises: BackendUnavailable, RunError (not loadable)."""
    tuning = replace(
        CPU_TUNING,
        num_threads=num_threads,
        packs_in_parallel=files.weights is None,  # fp32 alone is large enough to be waited for
        rests=files.prefill != files.decode,
    )
    decode = open_raw(folder / files.decode, "cpu", tuning=tuning)
    prefill = decode if files.prefill == files.decode else open_raw(folder / files.prefill, "cpu", tuning=tuning)
    return SharedCacheEngine(
        name=f"onnxruntime-cpu ({Path(files.decode).stem})",
        decode=decode,
        prefill=prefill,
        config=config,
        # DynamicQuantizeMatMul rounds all rows of a run on one range; MatMulNBits and fp32 treat each for itself.
        rows_independent=files.rows_independent,
    )


def open_growing(
    folder: Path, provider: str, config: AndreaConfig, num_threads: int, allow_cpu_nodes: bool
) -> GrowingCacheEngine:
    """The engine on the canonical graph. Raises: BackendUnavailable (also for a node elsewhere), RunError."""
    session = open_raw(
        folder / "model.onnx",
        provider,
        tuning=replace(CPU_TUNING, num_threads=num_threads),
        plugin_library=folder / "plugins" / "libandrea_plugins.so",
        allow_cpu_nodes=allow_cpu_nodes,
    )
    return GrowingCacheEngine(
        name=f"onnxruntime-{provider} (model)",
        session=session,
        config=config,
        device="cpu" if provider == "cpu" else "cuda",
    )
