"""What one file or folder is: a checkpoint, an ONNX file, an engine or a bundle, recognised by content, not by name.

Reads headers and graphs, never a whole set of weights into memory; needs no GPU and no torch. Returns facts; the cli
renders them. A fact that cannot be told is None, and is shown as unknown.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import stat
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from andrea_export.arithmetic import arithmetic_lines, parameter_counts
from andrea_export.bundle import Bundle, open_bundle
from andrea_export.checkpoint import (
    WEIGHTS_KEY,
    config_from_metadata,
    published_header,
    read_header,
    says_untrained,
    sha256_of,
)
from andrea_export.errors import BundleError, UsageError, first_line
from andrea_model.config import PRESETS, AndreaConfig

Kind = Literal["checkpoint", "published-checkpoint", "onnx", "engine", "plugin", "bundle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFact:
    """One input or output: its name, element type and dimensions (a str is dynamic)."""

    name: str
    dtype: str
    dims: tuple[int | str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Everything that could be told about one path without running it."""

    kind: Kind
    path: str
    num_bytes: int
    sha256: str | None
    """Of the file itself; None for a bundle, whose manifest holds one for each file."""
    config: AndreaConfig | None = None
    preset: str | None = None
    weights: str | None = None
    """Where the weights came from, in words."""
    trained: bool | None = None
    """None where the file does not say."""
    num_parameters: int | None = None
    """Counted from the tensors in the file, each once."""
    inputs: tuple[TensorFact, ...] = ()
    outputs: tuple[TensorFact, ...] = ()
    tensors: tuple[TensorFact, ...] = ()
    """A checkpoint's tensors, in the file's order."""
    num_nodes: Mapping[str, int] = field(default_factory=dict)
    """Operator type (with its domain where that is not ONNX's own) → nodes in the main graph."""
    made_by: Mapping[str, str] = field(default_factory=dict)
    """Producer, versions, precision, plugin: whatever the file or its manifest states."""
    notes: tuple[str, ...] = ()
    parts: tuple[Inspection, ...] = ()
    """A bundle's model, engines and plugin library."""

    @property
    def arithmetic(self) -> tuple[str, ...]:
        """The lesson's parameter arithmetic for this shape, and the count of what is really in the file."""
        if self.config is None:
            return ()
        lines = list(arithmetic_lines(self.config))
        if self.num_parameters is not None:
            expected = parameter_counts(self.config).exact
            agrees = "as computed" if self.num_parameters == expected else f"NOT the computed {expected:,}"
            lines.append(f"counted in this file: {self.num_parameters:,}, {agrees}")
        return tuple(lines)


def inspect_path(path: Path) -> Inspection:
    """What the path is. Raises: UsageError for a path that is missing or none of the kinds, and the reader's own error
    for one that is damaged."""
    if path.is_dir():
        return _inspect_bundle(path)
    if not path.exists():
        raise UsageError(
            f"{path}: no such file or folder", hint="give a checkpoint, an ONNX file, an engine or a bundle"
        )
    return _inspect_file(path)


def _inspect_file(path: Path) -> Inspection:
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise UsageError(
            f"{path} is neither a file nor a folder",
            hint="give a checkpoint, an ONNX file, an engine or a bundle",
        )
    # Also what /proc shows as a file of no bytes; reading one there may never end.
    if facts.st_size == 0:
        raise UsageError(f"{path} is empty", hint="give a checkpoint, an ONNX file, an engine or a bundle")
    with path.open("rb") as file:
        head = file.read(32)
    if head[:4] in _PLAN_MAGIC:
        return _inspect_engine(path)
    if head[:4] == _ELF_MAGIC:
        return _inspect_plugin(path)
    if head.lstrip()[:1] == b"{" and b"\0" not in head:
        raise _json_is_none_of_them(path)
    if head[8:9] == b"{":  # safetensors: u64 header length, then JSON
        return _inspect_checkpoint(path)
    if published_header(path) is not None:
        return _inspect_published(path)
    return _inspect_onnx(path)


def inspection_as_json(inspection: Inspection) -> dict[str, Any]:
    """The inspection as plain JSON values, the arithmetic included."""
    document = asdict(inspection)
    document["arithmetic"] = list(inspection.arithmetic)
    if inspection.config is not None:
        counts = parameter_counts(inspection.config)
        document["parameters"] = {
            "exact": counts.exact,
            "untied_without_biases_and_layer_norms": counts.untied_matrices,
            "untied_with_everything": counts.untied_everything,
            "trunk": counts.trunk,
            "mlp_matrices": counts.all_mlp_matrices,
            "token_embedding": counts.token_embedding,
            "position_embedding": counts.position_embedding,
            "biases": counts.biases,
            "layer_norms": counts.layer_norms,
        }
    document["parts"] = [inspection_as_json(part) for part in inspection.parts]
    return document


# --- checkpoints -----------------------------------------------------------------------------------------------------


def _inspect_checkpoint(path: Path) -> Inspection:
    header = read_header(path)
    config = config_from_metadata(header.metadata, path)
    shapes = {name: shape for name, (_, shape) in header.tensors.items()}
    notes = []
    if config is None:
        config = _config_from_shapes(shapes)
        if config is not None:
            notes.append(
                "the file states no configuration; read from the tensors' shapes, except for the number of heads, "
                "which no shape shows: taken from the preset with the same shapes"
            )
        else:
            notes.append("its tensors are not those of an ANDREA preset (names and shapes: model/README.md)")
    return Inspection(
        kind="checkpoint",
        path=str(path),
        num_bytes=path.stat().st_size,
        sha256=sha256_of(path),
        config=config,
        preset=_preset_of(config),
        weights=header.metadata[WEIGHTS_KEY]
        if says_untrained(header.metadata)
        else "the weights are in this file; whether it was trained, it does not say",
        trained=False if says_untrained(header.metadata) else None,
        num_parameters=sum(_product(shape) for shape in shapes.values()),
        tensors=tuple(
            TensorFact(name=name, dtype=dtype, dims=shape) for name, (dtype, shape) in header.tensors.items()
        ),
        made_by={key: value for key, value in header.metadata.items() if key != "andrea.config"},
        notes=tuple(notes),
    )


def _inspect_published(path: Path) -> Inspection:
    header = published_header(path)
    assert header is not None
    step, num_params = header
    fits = [
        (name, way)
        for name, config in PRESETS.items()
        for way, count in (
            ("tied head, biases, LayerNorms", parameter_counts(config).exact),
            ("untied head, no biases, no LayerNorm parameters", parameter_counts(config).untied_matrices),
        )
        if count == num_params
    ]
    matches = "; ".join(f"that is {name} with {way}" for name, way in fits) or "that is no count of any preset"
    return Inspection(
        kind="published-checkpoint",
        path=str(path),
        num_bytes=path.stat().st_size,
        sha256=sha256_of(path),
        config=PRESETS[fits[0][0]] if fits else None,
        preset=fits[0][0] if fits else None,
        weights=f"training step {step:,}",
        trained=step > 0,
        num_parameters=num_params,
        made_by={"layout": "int32 step, int32 n_params, float32 weights, Adam m, Adam v", "step": str(step)},
        notes=(
            f"{num_params:,} parameters: {matches}",
            "the model card does not state the order of the tensors, so it cannot be built from as it is: convert it "
            "to safetensors with the training engine",
        ),
    )


def _config_from_shapes(shapes: Mapping[str, tuple[int, ...]]) -> AndreaConfig | None:
    """The preset whose tensors have exactly these shapes, if there is one."""
    for config in PRESETS.values():
        if shapes.get("token_embed.weight") == (config.vocab_size, config.d_model) and shapes.get(
            f"blocks.{config.n_layer - 1}.mlp.fc.weight"
        ) == (config.d_model, config.mlp_dim):
            return config
    return None


# --- ONNX ------------------------------------------------------------------------------------------------------------


def _inspect_onnx(path: Path) -> Inspection:
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    from andrea_export.canonical import read_canonical_info

    model = onnx.ModelProto()
    if path.stat().st_size < _LARGEST_PROTOBUF:
        with contextlib.suppress(DecodeError):
            model = onnx.load(path, format="protobuf", load_external_data=False)  # whatever the file is called
    if not model.HasField("graph") or not model.opset_import:
        raise UsageError(
            f"{path} ({path.stat().st_size:,} bytes) is no checkpoint, ONNX file, engine or bundle",
            hint="give a safetensors file, an ONNX file, a TensorRT plan, or a folder that andrea-export build made",
        )
    graph = model.graph
    initializers = {entry.name: tuple(entry.dims) for entry in graph.initializer}
    info = read_canonical_info(path)
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
        preset=_preset_of(info.config) if info else None,
        weights=str(info.origin) if info else None,
        trained=info.origin.trained if info else None,
        num_parameters=sum(_product(dims) for dims in parameters.values()),
        inputs=tuple(_tensor_fact(value) for value in graph.input if value.name not in initializers),
        outputs=tuple(_tensor_fact(value) for value in graph.output),
        num_nodes=dict(
            sorted(Counter(f"{n.domain}::{n.op_type}" if n.domain else n.op_type for n in graph.node).items())
        ),
        made_by=made_by,
        notes=tuple(notes),
    )


def _tensor_fact(value: Any) -> TensorFact:
    import onnx

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
        return 0, "that is no file"
    return facts.st_size, f"{facts.st_size:,} bytes"


def _json_is_none_of_them(path: Path) -> UsageError:
    """The error for a JSON file, which may well be one that this program wrote."""
    try:
        content = json.loads(path.read_bytes()) if path.stat().st_size < _LARGEST_JSON else None
    except (ValueError, RecursionError):
        content = None
    schema = str(content.get("schema")) if isinstance(content, dict) else ""
    if schema.startswith("andrea-export/manifest/"):
        return UsageError(f"{path} is the manifest of a bundle", hint=f"inspect the bundle itself: {path.parent}")
    if schema.startswith("andrea-export/report/"):
        verdict = content.get("verdict") if isinstance(content, dict) else None
        return UsageError(
            f"{path} is the report of a validation, verdict {verdict}",
            hint=f"it is text; inspect the bundle it lies in: {path.parent}",
        )
    return UsageError(
        f"{path} begins like JSON, and is no checkpoint, ONNX file, engine or bundle",
        hint="give a safetensors file, an ONNX file, a TensorRT plan, or a folder that andrea-export build made",
    )


# --- engines and the plugin library ----------------------------------------------------------------------------------

# A plan's first four bytes. `vtrt` was read from TensorRT-RTX 1.7.1's plans, where bytes 16 to 23 are the plan's size,
# 24 to 27 the version, and 28 to 31 the magic again; `ftrt` is classic TensorRT's, of whose layout nothing more is
# assumed than that it is no text.
_PLAN_MAGIC = {b"vtrt": "TensorRT-RTX", b"ftrt": "TensorRT"}
_RTX_HEAD = struct.Struct("<4s12xQ4B4s")
_ELF_MAGIC = b"\x7fELF"
# What TensorRT looks for in a plugin library, newest first (IPluginV3's two; the lists of TensorRT 8 and 9).
_ENTRY_POINTS = ("getCreators", "setLoggerFinder", "getPluginCreators", "initLibNvInferPlugins")
_LARGEST_PROTOBUF = 1 << 31
_LARGEST_JSON = 1 << 28


def _inspect_engine(path: Path) -> Inspection:
    made_by: dict[str, str] = {}
    notes: list[str] = []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as plan:
        made_by["producer"] = _plan_producer(path, plan)
        made_by["plugin"] = _embedded_plugin(path, plan)
    bundle = _bundle_of(path)
    if bundle is None:
        notes.append("it lies in no bundle: what it was built from is unknown")
    else:
        made_by.update(_engine_record(bundle, path))
    notes.append("an engine's weights, inputs and outputs can be read only by TensorRT on a GPU")
    return Inspection(
        kind="engine",
        path=str(path),
        num_bytes=path.stat().st_size,
        sha256=sha256_of(path),
        config=bundle.config if bundle else None,
        preset=_preset_of(bundle.config) if bundle else None,
        weights=str(bundle.origin) if bundle else None,
        trained=bundle.origin.trained if bundle else None,
        made_by=made_by,
        notes=tuple(notes),
    )


def _plan_producer(path: Path, plan: mmap.mmap) -> str:
    """The product and version a plan states. Raises: UsageError for a file that only begins like one, or is cut."""
    flavour = _PLAN_MAGIC[plan[:4]]
    if len(plan) < _RTX_HEAD.size or b"\0" not in plan[: _RTX_HEAD.size]:
        raise UsageError(
            f"{path} ({len(plan):,} bytes) begins like a {flavour} engine, and is none", hint="copy it again whole"
        )
    if flavour == "TensorRT":
        return flavour
    _, num_bytes, *version, again = _RTX_HEAD.unpack_from(plan)
    if again != plan[:4]:
        raise UsageError(f"{path} begins like a {flavour} engine, and is none", hint="copy it again whole")
    if num_bytes != len(plan):
        raise UsageError(
            f"{path} is no whole {flavour} engine: it has {len(plan):,} bytes, and its header says {num_bytes:,}",
            hint="copy it again whole",
        )
    return f"{flavour} {'.'.join(map(str, version))}"


def _embedded_plugin(path: Path, plan: mmap.mmap) -> str:
    """Whether a plugin library is inside the plan, told from its bytes: verbatim where the library sits beside it."""
    for library in (path.parent.parent / "plugins").glob("*.so"):
        body = library.read_bytes()
        if body and plan.find(body) >= 0:
            return f"{library.name} is embedded, byte for byte ({len(body):,} bytes)"
    offset = plan.find(_ELF_MAGIC)
    if offset < 0:
        return "none embedded"
    return f"a shared library is embedded at byte {offset:,}; which one cannot be told without it"


def _inspect_plugin(path: Path) -> Inspection:
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


# --- bundles ---------------------------------------------------------------------------------------------------------


def _inspect_bundle(path: Path) -> Inspection:
    bundle = open_bundle(path, verify=False)
    manifest = bundle.manifest
    parts = [_inspect_file(bundle.model)]
    broken = []
    for file in (*sorted((path / "engines").glob("*.plan")), *sorted((path / "plugins").glob("*.so"))):
        try:
            parts.append(_inspect_file(file))
        except UsageError as error:
            broken.append(first_line(error))
    whole = parts[0]
    mismatches = bundle.mismatches()
    return Inspection(
        kind="bundle",
        path=str(path),
        num_bytes=sum(file.stat().st_size for file in path.rglob("*") if file.is_file()),
        sha256=None,
        config=bundle.config,
        preset=_preset_of(bundle.config),
        weights=str(bundle.origin),
        trained=bundle.origin.trained,
        num_parameters=whole.num_parameters,
        inputs=whole.inputs,
        outputs=whole.outputs,
        num_nodes=whole.num_nodes,
        made_by={
            **manifest.versions,
            "verdict when built": manifest.verdict,
            "precisions": ", ".join(manifest.recipe.precisions),
            **{f"GPUs of {file}": ", ".join(gpus) for file, gpus in manifest.target_gpus.items()},
            **{f"machine: {key}": value for key, value in manifest.machine.items()},
        },
        notes=tuple(f"NOT as it was built: {problem}" for problem in mismatches)
        or (f"all {len(manifest.files)} files match the manifest's sha256", *broken),
        parts=tuple(parts),
    )


def _bundle_of(engine: Path) -> Bundle | None:
    """The bundle an engine lies in, if it lies in one."""
    try:
        return open_bundle(engine.absolute().parent.parent, verify=False)
    except BundleError:
        return None


def _engine_record(bundle: Bundle, engine: Path) -> dict[str, str]:
    """What the manifest says of one engine, as text: its precision, its GELUs, whether the plugin is inside."""
    name = f"{engine.parent.name}/{engine.name}"
    for entry in bundle.manifest.engines:
        if entry.file == name:
            facts = entry.facts
            return {
                "target": facts.target,
                "precision": f"{facts.precision}{', TF32 allowed' if facts.tf32 else ''}",
                "for GPUs": ", ".join(bundle.manifest.target_gpus.get(name, ())) or "not stated",
                "GELU": f"{facts.num_plugin_layers} plugin layers of {facts.num_gelu_nodes} GELU nodes"
                + (" (native twin: TensorRT's own GELU)" if entry.native_twin else ""),
                "plugin library": "embedded in the engine" if facts.plugin_embedded else "not embedded",
                "network": f"{facts.num_network_layers} layers before TensorRT fused them",
                "built with": f"TensorRT {facts.tensorrt_version}"
                if facts.target == "tensorrt"
                else f"TensorRT-RTX {facts.tensorrt_version}",
                "build": f"{facts.seconds:.1f} s, {facts.peak_memory_bytes / 1e6:,.0f} MB of memory at its peak, "
                f"{facts.engine_bytes:,} bytes written",
            }
    return {}


def _preset_of(config: AndreaConfig | None) -> str | None:
    return next((name for name, preset in PRESETS.items() if preset == config), None)


def _product(dims: tuple[int, ...]) -> int:
    total = 1
    for dim in dims:
        total *= dim
    return total
