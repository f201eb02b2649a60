"""What a file is: the one place that tells, by content and never by name. And the header of the published training
checkpoint, whose card does not state the order of the tensors behind it.

A kind says which reader to ask, not that the file is whole: a damaged file is refused by its kind's reader, which can
say how it is damaged.
"""

import stat
import struct
from pathlib import Path
from typing import Literal, NamedTuple

from andrea_export.core.names import TRACE_KEY

FileKind = Literal[
    "folder",
    "special",
    "empty",
    "engine",
    "plugin",
    "json",
    "trace",
    "checkpoint",
    "pickle",
    "llm.c",
    "published-checkpoint",
    "onnx",
]

# A plan's first four bytes. `vtrt` was read from TensorRT-RTX 1.7.1's plans; `ftrt` is classic TensorRT's.
PLAN_MAGIC = {b"vtrt": "TensorRT-RTX", b"ftrt": "TensorRT"}
ELF_MAGIC = b"\x7fELF"
# A zip file; and torch.save's own magic number, pickled, as it began until torch 1.6.
_PICKLES = (b"PK\x03\x04", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.")
LLMC_MAGIC = 20240326


def recognise(path: Path) -> FileKind:
    """The kind of a file or folder. Raises: OSError if it cannot be read.

    ``special`` is a device, a pipe or a socket; ``empty`` is also what /proc shows as a file of no bytes. Neither is
    opened: reading it may never end. ``json`` is any JSON object, whose own schema says which. ``onnx`` is whatever is
    nothing else: the format has no magic, so only its parser can tell.
    """
    facts = path.stat()
    if stat.S_ISDIR(facts.st_mode):
        return "folder"
    if not stat.S_ISREG(facts.st_mode):
        return "special"
    if facts.st_size == 0:
        return "empty"
    with path.open("rb") as file:
        head = file.read(32)
    if head[:4] in PLAN_MAGIC:
        return "engine"
    if head[:4] == ELF_MAGIC:
        return "plugin"
    if head.startswith(_PICKLES):
        return "pickle"
    if head[:4] == LLMC_MAGIC.to_bytes(4, "little"):
        return "llm.c"
    if head.lstrip()[:1] == b"{" and b"\0" not in head:
        return "json"
    if head[8:9] == b"{":  # safetensors: u64 header length, then JSON
        with path.open("rb") as file:  # by as much of its header as is there
            header = file.read(8 + min(int.from_bytes(head[:8], "little"), facts.st_size))
        return "trace" if f'"{TRACE_KEY}"'.encode() in header else "checkpoint"
    return "published-checkpoint" if published_header(path) else "onnx"


_HEAD = struct.Struct("<ii")
PUBLISHED_HEADER_BYTES = _HEAD.size


class PublishedHeader(NamedTuple):
    """What the file says of itself."""

    step: int
    num_params: int


def published_header(path: Path) -> PublishedHeader | None:
    """The header of a file that has the published checkpoint's layout, else None.

    Source: the model card: int32 step, int32 n_params, then 3 × n_params float32 (weights, Adam m, Adam v).
    """
    with path.open("rb") as file:
        head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    header = PublishedHeader(*_HEAD.unpack(head))
    num_bytes = _HEAD.size + 12 * header.num_params
    return header if header.num_params > 0 and path.stat().st_size == num_bytes else None
