"""Inspection of a plugin library."""

from __future__ import annotations

from pathlib import Path

from andrea_export.core.errors import UsageError
from andrea_export.core.hashing import sha256_of
from andrea_export.inspection.facts import Inspection

# What TensorRT looks for in a plugin library, newest first (IPluginV3's two; the lists of TensorRT 8 and 9).
_ENTRY_POINTS = ("getCreators", "setLoggerFinder", "getPluginCreators", "initLibNvInferPlugins")


def inspect_plugin(path: Path) -> Inspection:
    body = path.read_bytes()
    symbols = [name for name in _ENTRY_POINTS if f"\0{name}\0".encode() in body]
    if not symbols:
        raise UsageError(
            f"{path} is a program or library (ELF) with none of a TensorRT plugin library's entry points",
            hint=f"a plugin library exports {_ENTRY_POINTS[0]}",
        )
    missing = "" if "getCreators" in symbols else "it exports no getCreators, so TensorRT cannot take a plugin from it"
    return Inspection(
        kind="plugin",
        path=str(path),
        num_bytes=len(body),
        sha256=sha256_of(path),
        made_by={"entry points": ", ".join(symbols) or "none"},
        notes=(missing,) if missing else (),
    )
