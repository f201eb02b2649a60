"""Inspection of an ONNX file, ours or another's."""

import contextlib
import math
import stat
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from andrea_export.core.errors import UsageError
from andrea_export.core.hashing import sha256_of
from andrea_export.graph.canonical.metadata import canonical_info
from andrea_export.inspection.facts import WHAT_CAN_BE_INSPECTED, Inspection, TensorFact
from andrea_export.weights.origin import preset_of

_LARGEST_PROTOBUF = 1 << 31


def inspect_onnx(path: Path) -> Inspection:
    model = onnx.ModelProto()
    if path.stat().st_size < _LARGEST_PROTOBUF:
        with contextlib.suppress(DecodeError):
            model = onnx.load(path, format="protobuf", load_external_data=False)  # whatever the file is called
    if not model.HasField("graph") or not model.opset_import:
        raise UsageError(
            f"{path} ({path.stat().st_size:,} bytes) is not a checkpoint, ONNX file, engine or bundle",
            hint=WHAT_CAN_BE_INSPECTED,
        )
    graph = model.graph
    initializers = {entry.name: tuple(entry.dims) for entry in graph.initializer}
    info = canonical_info(model)
    external = sorted(
        {
            entry.value
            for tensor in graph.initializer
            if tensor.data_location == onnx.TensorProto.EXTERNAL
            for entry in tensor.external_data
            if entry.key == "location"
        }
    )
    sizes = {name: _size_beside(path, name) for name in external}
    notes = [f"weights in {name}: {told}" for name, (_, told) in sizes.items()]
    if info is None:
        notes.append("not written by andrea-export: no configuration inside")
    opsets = ", ".join(f"{entry.domain or 'ai.onnx'} {entry.version}" for entry in model.opset_import)
    made_by = {
        "producer": " ".join(part for part in (model.producer_name, model.producer_version) if part) or "not stated",
        "IR version": str(model.ir_version),
        "opsets": opsets,
    }
    if model.functions:
        made_by["local functions"] = ", ".join(f"{entry.domain}::{entry.name}" for entry in model.functions)
    parameters = {name: dims for name, dims in initializers.items() if info is None or not name.startswith("constant.")}
    return Inspection(
        kind="onnx",
        path=str(path),
        num_bytes=path.stat().st_size + sum(num_bytes for num_bytes, _ in sizes.values()),
        sha256=sha256_of(path),
        config=info.config if info else None,
        preset=preset_of(info.config) if info else None,
        weights=str(info.origin) if info else None,
        trained=info.origin.trained if info else None,
        num_parameters=sum(math.prod(dims) for dims in parameters.values()),
        inputs=tuple(_tensor_fact(value) for value in graph.input if value.name not in initializers),
        outputs=tuple(_tensor_fact(value) for value in graph.output),
        num_nodes=dict(
            sorted(Counter(f"{n.domain}::{n.op_type}" if n.domain else n.op_type for n in graph.node).items())
        ),
        made_by=made_by,
        notes=tuple(notes),
    )


def _tensor_fact(value: Any) -> TensorFact:
    tensor = value.type.tensor_type
    dims = tuple(dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or "?") for dim in tensor.shape.dim)
    types = onnx.TensorProto.DataType
    known = tensor.elem_type in types.values()
    return TensorFact(
        name=value.name, dtype=types.Name(tensor.elem_type) if known else f"type {tensor.elem_type}", dims=dims
    )


def _size_beside(model: Path, name: str) -> tuple[int, str]:
    """The bytes of a file of weights that a model names, and what is said of it. A name that leads out of the model's
    folder is not followed: the file asks for it, not the user."""
    location = PurePosixPath(name)
    if location.is_absolute() or ".." in location.parts:
        return 0, f"that name leads out of the folder of {model.name}, and is not followed"
    try:
        facts = (model.parent / name).stat()
    except (OSError, ValueError):
        return 0, f"that file is MISSING beside {model.name}"
    if not stat.S_ISREG(facts.st_mode):
        return 0, "that is not a file"
    return facts.st_size, f"{facts.st_size:,} bytes"
