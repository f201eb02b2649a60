"""What a file is, told by its content and never by its name."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from andrea_export.core.names import TRACE_KEY
from andrea_export.weights.readers.recognise import FileKind, published_header, recognise


def trace(path: Path) -> None:
    save_file({"x": torch.zeros(1)}, path, metadata={TRACE_KEY: "{}"})


def cut_trace(path: Path) -> None:
    trace(path)
    path.write_bytes(path.read_bytes()[:-3])


KINDS: list[tuple[FileKind, bytes | Callable[[Path], None]]] = [
    ("folder", Path.mkdir),
    ("empty", b""),
    ("engine", b"vtrt" + bytes(40)),
    ("engine", b"ftrt"),
    ("plugin", b"\x7fELF"),
    ("json", b'{"schema": "andrea-export/report/1"}'),
    ("json", b" \n{"),
    ("checkpoint", lambda path: save_file({"x": torch.zeros(1)}, path)),
    ("checkpoint", struct.pack("<Q", 1 << 62) + b"{}"),  # damaged, which its reader says
    ("trace", trace),
    ("trace", cut_trace),
    ("published-checkpoint", struct.pack("<ii", 1000, 7) + bytes(84)),
    ("onnx", b"\x08\x0a"),
    ("onnx", b"hello, this is text"),  # nothing else, so its parser is asked
]


@pytest.mark.parametrize("name", ["file", "model.onnx", "weights.safetensors", "x.json"])
@pytest.mark.parametrize(("kind", "content"), KINDS)
def test_a_kind_is_told_by_content(
    tmp_path: Path, name: str, kind: FileKind, content: bytes | Callable[[Path], None]
) -> None:
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        content(path)
    assert recognise(path) == kind


def test_files_of_the_project(checkpoint: Path, tiny_onnx: Path) -> None:
    assert (recognise(checkpoint), recognise(tiny_onnx)) == ("checkpoint", "onnx")


def test_what_may_never_end_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("it was opened"))
    assert recognise(Path("/dev/zero")) == recognise(Path("/dev/null")) == "special"
    assert recognise(Path("/proc/kmsg")) == "empty"


def test_the_published_layout(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.bin"
    body = struct.pack("<ii", 1234, 5) + np.arange(15, dtype="<f4").tobytes()
    path.write_bytes(body)
    assert published_header(path) == (1234, 5)
    path.write_bytes(body[:-1])
    assert published_header(path) is None
    path.write_bytes(body[:5])
    assert published_header(path) is None
    path.write_bytes(struct.pack("<ii", 0, -1) + b"\0" * 4)
    assert published_header(path) is None
