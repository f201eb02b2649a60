"""Which TensorRT headers a plugin build uses: this project's own declarations, or NVIDIA's."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from andrea_export.core.errors import PluginError


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRTHeaders:
    """The headers for people (`label`), and for the cache's key (`identity`: their content)."""

    label: str
    identity: str


def tensorrt_headers(tensorrt_root: Path | None) -> TensorRTHeaders:
    """NVIDIA's headers under `tensorrt_root`, or this project's own, ``abi``, where it is None.

    Raises: PluginError if the headers are not there.
    """
    if tensorrt_root is None:
        return TensorRTHeaders(label="abi", identity="abi")
    candidates = [
        tensorrt_root / "include",
        tensorrt_root,
        *sorted(tensorrt_root.glob("include/*-linux-gnu")),
    ]
    folder = next((path for path in candidates if (path / "NvInferRuntime.h").is_file()), None)
    if folder is None:
        raise PluginError(
            f"{tensorrt_root}: expected TensorRT's headers, found no include/NvInferRuntime.h",
            hint="name the folder of an unpacked TensorRT release, or leave TENSORRT_ROOT out",
        )
    digest = hashlib.sha256()
    for header in sorted(folder.glob("NvInfer*.h")):
        digest.update(header.read_bytes())
    version_header = folder / "NvInferVersion.h"
    text = version_header.read_text(errors="replace") if version_header.is_file() else ""
    define = r"^#define (?:NV_TENSORRT|TRT)_(MAJOR|MINOR|PATCH)(?:_ENTERPRISE)? (\d+)"
    numbers = dict(re.findall(define, text, re.MULTILINE))
    version = ".".join(numbers.get(part, "?") for part in ("MAJOR", "MINOR", "PATCH"))
    label = f"NVIDIA {version}"
    return TensorRTHeaders(label=label, identity=json.dumps([label, digest.hexdigest()]))
