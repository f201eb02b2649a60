"""Times the kernel with other numbers than those it ships with: packs in flight, blocks per multiprocessor, waves.

A missed goal is then answered by the same run. Nothing here is a goal of its own.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import torch
from gpu_parts import REPOSITORY, STORAGE_TYPES, Built, NotAvailable, PartResult, gpu_architecture
from part_timing import SHAPES, microseconds

# (packs in flight, blocks per multiprocessor at least, waves); the first is what ships.
VARIANTS = ((2, 6, 8), (4, 4, 8), (4, 6, 8), (1, 8, 8), (2, 8, 8), (2, 6, 1), (2, 6, 1000))
_NUM_BUFFERS = 8


def run(built: Built, result: PartResult) -> None:
    """One row a variant, the large shape. Raises: NotAvailable without a GPU or nvcc."""
    if built.nvcc is None:
        raise NotAvailable("torch sees no CUDA GPU on this machine")
    folder = built.cache / "variants"
    folder.mkdir(parents=True, exist_ok=True)
    processes = {variant: _compile(built.nvcc, folder, variant) for variant in VARIANTS}
    for variant, (process, library) in processes.items():
        said = process.communicate()[0]
        if process.returncode != 0:
            result.note(f"{variant}: nvcc: {said.strip().splitlines()[-1:]}")
            continue
        launch = ctypes.CDLL(str(library)).andrea_launch_gelu
        launch.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, ctypes.c_int64, *[ctypes.c_int] * 2, ctypes.c_void_p]
        packs, blocks, waves = variant
        times = {
            f"{storage}, us": round(_time(launch, index, dtype), 3)
            for index, (storage, dtype) in enumerate(STORAGE_TYPES.items())
        }
        result.row({"packs in flight": packs, "blocks at least": blocks, "waves": waves, **times})


def _compile(nvcc: str, folder: Path, variant: tuple[int, int, int]) -> tuple[subprocess.Popen[str], Path]:
    packs, blocks, waves = variant
    library = folder / f"libkernel_{packs}_{blocks}_{waves}.so"
    plugins = REPOSITORY / "plugins"
    numbers = [
        f"-DANDREA_PACKS_LONG={packs}",
        f"-DANDREA_MIN_BLOCKS_PER_MULTIPROCESSOR={blocks}",
        f"-DANDREA_MAX_WAVES={waves}",
    ]
    options = ["-std=c++17", f"-arch=sm_{gpu_architecture()}", "-shared", "-Xcompiler=-fPIC", "-I", str(plugins)]
    sources = [str(plugins / "tests" / "launch_c.cu"), str(plugins / "gelu" / "kernel.cu")]
    where = [f"-L{Path(nvcc).parent.parent / 'lib'}", "-o", str(library)]
    command = [nvcc, *options, *numbers, *where, *sources]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return process, library


def _time(launch: Callable[..., int], storage: int, dtype: torch.dtype) -> float:
    properties = torch.cuda.get_device_properties(0)
    limits = (properties.multi_processor_count, properties.max_threads_per_multi_processor)
    inputs = [torch.randn(SHAPES["large"], device="cuda", dtype=dtype) * 2 for _ in range(_NUM_BUFFERS)]
    outputs = [torch.empty_like(x) for x in inputs]

    def call(index: int) -> Callable[[], object]:
        x, y = inputs[index % _NUM_BUFFERS], outputs[index % _NUM_BUFFERS]

        def launch_once() -> None:
            stream = torch.cuda.current_stream().cuda_stream
            status = launch(storage, x.data_ptr(), y.data_ptr(), x.numel(), *limits, stream)
            if status != 0:
                raise RuntimeError(f"the launch returned {status}")

        return launch_once

    return microseconds([call(index) for index in range(2 * _NUM_BUFFERS)])
