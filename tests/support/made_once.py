"""What is expensive and only read is made once a run, whichever of pytest's workers asks first."""

from __future__ import annotations

import fcntl
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeOnce:
    """``made_once(name, make)`` is ``make(folder)``, with a folder that all workers see and all calls share."""

    folder: Path

    def __call__(self, name: str, make: Callable[[Path], T]) -> T:
        """What the first call made; the others wait for it. It is pickled on its way from one process to the other."""
        with (self.folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            record = self.folder / f"{name}.pickle"
            if not record.exists():
                (self.folder / name).mkdir(exist_ok=True)  # it is there if an earlier call failed
                record.write_bytes(pickle.dumps(make(self.folder / name)))
            made: Any = pickle.loads(record.read_bytes())
            return made  # type: ignore[no-any-return]
