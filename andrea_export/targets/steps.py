"""What a step is made from, as one hash: equal hash, equal result, so the earlier result is taken."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import andrea_export
import andrea_model


def step_key(**made_from: Any) -> str:
    """The hash of what a step is made from; dataclasses and paths' contents must be given as values or hashes."""
    text = json.dumps(made_from, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def tool_sha256() -> str:
    """The hash of this tool's own Python sources: a changed tool reuses nothing."""
    digest = hashlib.sha256()
    for package in (andrea_export, andrea_model):
        root = Path(str(package.__file__)).parent
        for file in sorted(root.rglob("*.py")):
            if "_plugin_sources" in file.parts:  # a wheel's copy of the C++ folder has its own hash
                continue
            digest.update(f"{root.name}/{file.relative_to(root).as_posix()}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} is not part of a step's key")
