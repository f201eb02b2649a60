"""What the parts of the GPU check share: their results, the machine, and the plugin called on torch's tensors.

Needs torch and this checkout. A part imports what it needs itself, so that what is missing on a machine is missing from
that part only.
"""

from __future__ import annotations

import ctypes
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
for _folder in (REPOSITORY, REPOSITORY / "model", REPOSITORY / "tests" / "plugins", Path(__file__).resolve().parent):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))

import torch  # noqa: E402  (the paths above come first, so that this checkout wins over an installed package)

STORAGE_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_TENSORRT_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 7}  # nvinfer1::DataType


@dataclass(slots=True, kw_only=True)
class PartResult:
    """What a part found: rows for a table, goals, and what went wrong. Each finding is in `file` as soon as it is made.

    `deadline` is when the part will be stopped, in ``time.monotonic``'s seconds.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    goals: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    file: Path | None = None
    deadline: float = math.inf

    def row(self, cells: Mapping[str, Any]) -> dict[str, Any]:
        """Adds a row and returns it; what the caller adds to it is kept with the next finding."""
        self.rows.append(dict(cells))
        self.keep()
        return self.rows[-1]

    def note(self, text: str) -> None:
        """Adds a line under the table."""
        self.notes.append(text)
        self.keep()

    def fail(self, what: str) -> None:
        """Records a failure."""
        self.failures.append(what)
        self.keep()

    def goal(self, text: str, *, met: bool, measured: str) -> None:
        """Records a goal and whether it was met. A goal that is missed is a figure, not a failure."""
        self.goals.append({"goal": text, "met": met, "measured": measured})
        self.keep()

    def expect(self, holds: bool, what: str) -> None:
        """Records a failure unless it holds."""
        if not holds:
            self.fail(what)

    def seconds_left(self) -> float:
        """What is left of the part's time; infinite if nothing will stop it."""
        return max(self.deadline - time.monotonic(), 0.0)

    def values(self) -> dict[str, list[Any]]:
        """What was found, as plain values."""
        return {"rows": self.rows, "goals": self.goals, "failures": self.failures, "notes": self.notes}

    def keep(self) -> None:
        """Writes what was found into the file, so that a part that is stopped or dies has not lost it."""
        if self.file is not None:
            beside = self.file.with_suffix(".writing")
            beside.write_text(json.dumps(self.values(), default=str))
            beside.replace(self.file)


class NotAvailable(Exception):
    """A part cannot run here, or not to its end; the reason is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The libraries the other parts run, and where they run: ``cuda``, or ``cpu`` in a rehearsal without a GPU."""

    device: str
    plugin: Path
    harness: Path
    cache: Path
    nvcc: str | None


Part = Callable[[Built, PartResult], None]


def gpu_architecture() -> str:
    """The first GPU's compute capability as ``90``. Raises: NotAvailable with the reason."""
    if not torch.cuda.is_available():
        raise NotAvailable("torch sees no CUDA GPU on this machine")
    major, minor = torch.cuda.get_device_capability(0)
    return f"{major}{minor}"


class PluginOnTensors:
    """The plugin's GELU on torch tensors, through the plugin ABI: creator, plugin, attach, shape change, enqueue."""

    def __init__(self, built: Built) -> None:
        """Loads the library. Raises: RuntimeError with the harness's reason."""
        self._library = ctypes.CDLL(str(built.harness))
        self._library.andrea_harness_open.restype = ctypes.c_void_p
        self._library.andrea_harness_open.argtypes = [*[ctypes.c_char_p] * 3, ctypes.c_int64]
        self._library.andrea_harness_run.restype = ctypes.c_int32
        self._library.andrea_harness_run.argtypes = [
            *(ctypes.c_void_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_int64), ctypes.c_int32),
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
        ]
        self._library.andrea_harness_close.argtypes = [ctypes.c_void_p]
        reason = ctypes.create_string_buffer(512)
        self._session = self._library.andrea_harness_open(
            str(built.plugin).encode(), b"AndreaGelu", reason, len(reason)
        )
        if not self._session:
            raise RuntimeError(reason.value.decode(errors="replace"))

    def into(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """y = GELU(x) on the current stream. Raises: RuntimeError with enqueue's status."""
        extents = (ctypes.c_int64 * x.dim())(*x.shape)
        stream = torch.cuda.current_stream().cuda_stream if x.is_cuda else None
        status = self._library.andrea_harness_run(
            self._session, _TENSORRT_TYPES[x.dtype], extents, x.dim(), x.data_ptr(), y.data_ptr(), stream
        )
        if status != 0:
            raise RuntimeError(f"enqueue returned {status} for {tuple(x.shape)} {x.dtype}")

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        self.into(x, y)
        return y

    def close(self) -> None:
        """Unloads the library."""
        self._library.andrea_harness_close(self._session)
