"""A session on an engine, seen from the parent: arrays go to the worker and come back through files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea_export.core.dtypes import DTYPES, dtype_from_numpy
from andrea_export.core.errors import RunError
from andrea_export.sessions.base import Feeds, Session
from andrea_export.targets.tensorrt.child import Child

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
