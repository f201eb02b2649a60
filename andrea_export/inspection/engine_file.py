"""Inspection of an engine, without running it, and of a plugin library."""

import mmap
import struct
from pathlib import Path

from andrea_export.bundle.manifest import Bundle, open_bundle
from andrea_export.core.errors import BundleError, UsageError
from andrea_export.core.hashing import sha256_of
from andrea_export.inspection.facts import Inspection
from andrea_export.targets.tensorrt.flavours import FLAVOURS
from andrea_export.weights.origin import preset_of
from andrea_export.weights.readers.recognise import ELF_MAGIC, PLAN_MAGIC

# Read from TensorRT-RTX 1.7.1's plans: bytes 16 to 23 are the plan's size, 24 to 27 the version, and 28 to 31 the magic
# again. Of classic TensorRT's layout nothing more is assumed than that it is not text.
_RTX_HEAD = struct.Struct("<16xQ4B4x")


def inspect_engine(path: Path) -> Inspection:
    made_by: dict[str, str] = {}
    notes: list[str] = []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as plan:
        made_by["producer"] = _plan_producer(path, plan)
        made_by["plugin"] = _embedded_plugin(path, plan)
    bundle = _bundle_of(path)
    if bundle is None:
        notes.append("it is not in a bundle: what it was built from is unknown")
    else:
        made_by.update(_engine_record(bundle, path))
    notes.append("an engine's weights, inputs and outputs can be read only by TensorRT on a GPU")
    return Inspection(
        kind="engine",
        path=str(path),
        num_bytes=path.stat().st_size,
        sha256=sha256_of(path),
        config=bundle.config if bundle else None,
        preset=preset_of(bundle.config) if bundle else None,
        weights=str(bundle.origin) if bundle else None,
        trained=bundle.origin.trained if bundle else None,
        made_by=made_by,
        notes=tuple(notes),
    )


def _plan_producer(path: Path, plan: mmap.mmap) -> str:
    """The product and version a plan states. Raises: UsageError for a file that only begins like one, or is cut."""
    flavour, whole = PLAN_MAGIC[plan[:4]], "copy it again whole"
    is_plan = len(plan) >= _RTX_HEAD.size and b"\0" in plan[: _RTX_HEAD.size]
    if is_plan and flavour == "TensorRT":
        return flavour
    if not is_plan or plan[28:32] != plan[:4]:
        raise UsageError(f"{path} ({len(plan):,} bytes) begins like a {flavour} engine but is not one", hint=whole)
    num_bytes, *version = _RTX_HEAD.unpack_from(plan)
    if num_bytes != len(plan):
        raise UsageError(
            f"{path} is not a whole {flavour} engine: it has {len(plan):,} bytes, and its header says {num_bytes:,}",
            hint=whole,
        )
    return f"{flavour} {'.'.join(map(str, version))}"


def _embedded_plugin(path: Path, plan: mmap.mmap) -> str:
    """Whether a plugin library is inside the plan, told from its bytes: verbatim where the library sits beside it."""
    for library in (path.parent.parent / "plugins").glob("*.so"):
        body = library.read_bytes()
        if body and plan.find(body) >= 0:
            return f"{library.name} is embedded, byte for byte ({len(body):,} bytes)"
    offset = plan.find(ELF_MAGIC)
    if offset < 0:
        return "none embedded"
    return f"a shared library is embedded at byte {offset:,}; which one cannot be told without it"


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
                "built with": f"{FLAVOURS[facts.target].product} {facts.tensorrt_version}",
                "build": f"{facts.seconds:.1f} s, {facts.peak_memory_bytes / 1e6:,.0f} MB of memory at its peak, "
                f"{facts.engine_bytes:,} bytes written",
            }
    return {}


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
