"""Inside the worker: parses a derived ONNX file, proves what each GELU became, and builds the engine.

Everything goes through Polygraphy's loaders, which import ``tensorrt`` or ``tensorrt_rtx`` by the worker's environment.
"""

import importlib
import mmap
import re
import resource
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from andrea_export.core.errors import BackendUnavailable, BuildError, PluginError

Doing = Callable[[str], None]

# Progress is told down to this depth of the builder's phases: deeper ones come in hundreds.
_PHASE_DEPTH = 3


def import_tensorrt() -> Any:
    """The TensorRT module of this process's flavour. Raises BackendUnavailable with the loader's own words."""
    from polygraphy import config as polygraphy_config

    name = "tensorrt_rtx" if polygraphy_config.USE_TENSORRT_RTX else "tensorrt"
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:  # no package; or no shared library of it
        raise BackendUnavailable(f"{name} cannot be imported: {error}") from None


def describe() -> dict[str, Any]:
    """What the parent must know to derive the engine's file: the version, and whether the parser knows Attention."""
    trt = import_tensorrt()
    from polygraphy.backend.trt import create_network, get_trt_logger

    builder, network = create_network()
    parser = trt.OnnxParser(network, get_trt_logger())
    description = {"version": trt.__version__, "attention_node": bool(parser.supports_operator("Attention"))}
    del parser, network, builder  # in this order: each refers to the next
    return description


def build(request: Mapping[str, Any], doing: Doing, *, mark: Callable[[Any], None] | None = None) -> dict[str, Any]:
    """Builds ``request["output"]`` and returns what was counted and read back on the way.

    ``mark`` is given the network before it is built: for a check that marks debug tensors in it.

    Raises: PluginError (the library cannot be loaded, or lacks the plugin), BuildError (a GELU is not what was asked
    for, or the builder failed).
    """
    trt = import_tensorrt()
    from polygraphy.backend.trt import EngineBytesFromNetwork

    plugin: Mapping[str, str] | None = request["plugin"]
    if plugin is not None:
        doing("loading the plugin library")
        _load_plugin(trt, plugin)
    facts: dict[str, Any] = {}
    prepared = _prepared_network(trt, request, facts, doing, mark)
    configured = _configuration(trt, request, facts, doing)
    output = Path(request["output"])
    doing("parsing the ONNX file")
    with memoryview(EngineBytesFromNetwork(prepared, config=configured)()) as engine:
        doing("writing the engine")
        with output.open("wb") as file:
            file.write(engine)
        facts["engine_bytes"] = engine.nbytes
    embedded = plugin is not None and file_contains(output, Path(plugin["library"]).read_bytes())
    if plugin is not None and not embedded:
        raise BuildError("the engine does not hold the plugin library, which it was told to embed")
    return {
        **facts,
        "plugin_embedded": embedded,
        "version": trt.__version__,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,  # KiB on Linux
    }


def _prepared_network(
    trt: Any, request: Mapping[str, Any], facts: dict[str, Any], doing: Doing, mark: Callable[[Any], None] | None
) -> Any:
    """The loader of the parsed network, its GELUs proven and counted into ``facts`` when it is called."""
    from polygraphy import func
    from polygraphy.backend.trt import NetworkFromOnnxPath

    # From TensorRT 11 on every network is strongly typed and the flag means nothing; before, it is what makes the
    # graph's types binding.
    has_flag = hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")

    @func.extend(NetworkFromOnnxPath(request["model"], strongly_typed=has_flag))  # type: ignore[untyped-decorator]
    def prepared(builder: Any, network: Any, parser: Any) -> None:
        doing("checking what each GELU became")
        facts.update(gelu_facts(trt, network, request["gelu_layers"], request["plugin"]))
        if request["decomposable_attention"]:
            _allow_decomposition(trt, network)
        if mark is not None:
            mark(network)
        doing("building the engine")

    return prepared


def _configuration(trt: Any, request: Mapping[str, Any], facts: dict[str, Any], doing: Doing) -> Any:
    """The loader of the builder's configuration; what TF32 was set to is read back into ``facts``."""
    from polygraphy import config as polygraphy_config
    from polygraphy import func
    from polygraphy.backend.tensorrt_rtx import CreateConfigRTX
    from polygraphy.backend.trt import CreateConfig, Profile

    profile = Profile()
    for name, (minimum, optimum, maximum) in request["profile"].items():
        profile.add(name, min=tuple(minimum), opt=tuple(optimum), max=tuple(maximum))
    create_config = CreateConfigRTX if polygraphy_config.USE_TENSORRT_RTX else CreateConfig
    configure = create_config(profiles=[profile], progress_monitor=_phase_monitor(trt, doing))

    @func.extend(configure)  # type: ignore[untyped-decorator]
    def configured(config: Any) -> None:
        # On by default, and CreateConfigRTX has no argument for it.
        if request["tf32"]:
            config.set_flag(trt.BuilderFlag.TF32)
        else:
            config.clear_flag(trt.BuilderFlag.TF32)
        if request["plugin"] is not None:
            config.plugins_to_serialize = [request["plugin"]["library"]]
        facts["tf32"] = bool(config.get_flag(trt.BuilderFlag.TF32))

    return configured


def file_contains(path: Path, needle: bytes) -> bool:
    """Whether these bytes stand in the file, in one piece."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return mapped.find(needle) >= 0


# --- the plugin -------------------------------------------------------------------------------------------------------


def _load_plugin(trt: Any, plugin: Mapping[str, str]) -> None:
    """Registers the library's creators. Raises PluginError if it has none, or not the one the graph asks for."""
    from polygraphy.backend.trt import get_trt_logger

    builder = trt.Builder(get_trt_logger())  # while one lives, the registry says through its logger what is wrong
    registry = trt.get_plugin_registry()  # the parser's, where the builder's own one is not
    before = set(_creator_names(registry))
    library = registry.load_library(plugin["library"])
    del builder
    if library is None:
        raise PluginError(f"{plugin['library']} is not a TensorRT plugin library")
    found = _creator_names(registry)
    wanted = _creator_name(plugin["name"], plugin["version"], plugin["namespace"])
    if wanted not in found:
        added = sorted(set(found) - before)
        raise PluginError(
            f"{plugin['library']} has no {wanted}; it has {', '.join(added) or 'no plugin that was not there before'}",
            hint="build the library from this version's sources",
        )


def _creator_names(registry: Any) -> list[str]:
    return [_creator_name(one.name, one.plugin_version, one.plugin_namespace) for one in registry.all_creators]


def _creator_name(name: str, version: str, namespace: str) -> str:
    return f"{namespace}::{name} v{version}"


# --- the proof --------------------------------------------------------------------------------------------------------


def gelu_facts(trt: Any, network: Any, gelu_layers: Sequence[str], plugin: Mapping[str, str] | None) -> dict[str, Any]:
    """What each GELU became in the parsed network, by module path, and how many plugin layers there are.

    Raises: BuildError, saying what each GELU got, unless each is exactly one layer of the wanted plugin, there are as
    many plugin layers as GELUs, or, where no plugin is wanted, there is no plugin layer at all.
    """
    became: dict[str, list[str]] = {name: [] for name in gelu_layers}
    wanted = "native"
    if plugin is not None:
        wanted = f"plugin {_creator_name(plugin['name'], plugin['version'], plugin['namespace'])}"
    num_plugin_layers = 0
    strangers = []
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        kind = layer.type.name
        name, in_function = _onnx_node(layer)
        is_plugin = kind.startswith("PLUGIN")
        num_plugin_layers += is_plugin
        implementation = kind
        if kind == "PLUGIN_V3":
            implementation = _plugin_identity(trt, layer) or (kind if plugin is None else wanted)
        if in_function:
            implementation += " of the function body"
        if name in became:
            became[name].append(implementation)
        elif is_plugin:
            strangers.append(f"{name or layer.name}: {implementation}")
    proven = num_plugin_layers == 0 and all(became.values())
    if plugin is not None:
        proven = num_plugin_layers == len(gelu_layers) and all(got == [wanted] for got in became.values())
    if not proven:
        shown = "; ".join(f"{name}: {' + '.join(got) or 'no layer of its own'}" for name, got in became.items())
        others = f"; other plugin layers: {', '.join(strangers)}" if strangers else ""
        raise BuildError(
            f"the parsed network has {num_plugin_layers} plugin layers for {len(gelu_layers)} GELUs, "
            f"each of which should be {wanted}: {shown}{others}"
        )
    return {
        "num_plugin_layers": num_plugin_layers,
        "num_network_layers": network.num_layers,
        "gelu_implementations": dict.fromkeys(gelu_layers, wanted),
    }


def _onnx_node(layer: Any) -> tuple[str, bool]:
    """The graph's node a layer was parsed from, and whether by way of a local function's body.

    The parser notes ``[ONNX Layer: node]`` in the layer's metadata, or ``[ONNX Layer: inner node | node
    (function)]``; a layer of its own making has no note, and is known by its name.
    """
    match = re.search(r"\[ONNX Layer: (.+?)\]", layer.metadata)
    if match is None:
        return str(layer.name), False
    *inner, node = match[1].split(" | ")
    return (node.rpartition(" (")[0], True) if inner else (node, False)


def _plugin_identity(trt: Any, layer: Any) -> str | None:
    """Which plugin a PLUGIN_V3 layer is, in its own words; None where TensorRT lets no one ask.

    Before 10.4 the binding hands out no interface of a C++ plugin. There a layer at a GELU's node is the plugin that
    the node's attributes name, as the parser knows no other way to a PLUGIN_V3 layer.
    """
    # Every layer comes as its base class; the derived one is reached by naming it.
    layer.__class__ = trt.IPluginV3Layer
    core = layer.plugin.get_capability_interface(trt.PluginCapabilityType.CORE)
    if core is None:
        return None
    return f"plugin {_creator_name(core.plugin_name, core.plugin_version, core.plugin_namespace)}"


# --- the network and the builder --------------------------------------------------------------------------------------


def _allow_decomposition(trt: Any, network: Any) -> None:
    """Lets every attention become MatMul, Softmax, MatMul where no fused kernel fits."""
    if not hasattr(trt.LayerType, "ATTENTION_INPUT"):
        return  # TensorRT before 10.14: its file came without Attention nodes
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == trt.LayerType.ATTENTION_INPUT:
            layer.__class__ = trt.IAttentionInputLayer
            layer.attention.decomposable = True


def _phase_monitor(trt: Any, doing: Doing) -> Any:
    """A progress monitor that tells the builder's outer phases."""

    class PhaseMonitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.depth: dict[str, int] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            depth = self.depth.get(parent_phase or "", 0) + 1
            self.depth[phase_name] = depth
            if depth <= _PHASE_DEPTH:
                doing(f"building the engine: {phase_name[0].lower()}{phase_name[1:]}")

        def phase_finish(self, phase_name: str) -> None:
            pass

        def step_complete(self, phase_name: str, step: int) -> bool:
            return True

    return PhaseMonitor()
