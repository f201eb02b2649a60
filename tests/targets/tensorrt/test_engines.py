"""Every engine backend builds what it says it can, proves what each GELU became, and fails in one sentence.

The engines are real. Where a backend says that it cannot build here, that answer is what is tested.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx_ir as ir
import pytest

from andrea_export.core.errors import AndreaError, BackendUnavailable, BuildError, PassError, PluginError, UsageError
from andrea_export.core.names import gelu_layers
from andrea_export.core.precision import PRECISIONS, EnginePrecision
from andrea_export.core.profile import Profile, ShapeRange
from andrea_export.core.progress import Silent
from andrea_export.graph.passes.gelu_nodes import NativeGelu, gelu_nodes
from andrea_export.graph.passes.graph_edits import run_passes
from andrea_export.operators.build import build_plugin_library
from andrea_export.operators.sources import andrea_gelu
from andrea_export.targets.tensorrt.backend import EngineBackend
from andrea_export.targets.tensorrt.facts import EngineFacts, EngineRequest, profile_shapes
from andrea_export.targets.tensorrt.flavours import EngineTarget, engine_backend
from andrea_export.targets.tensorrt.worker_build import file_contains
from andrea_model.config import PRESETS

CONFIG = PRESETS["andrea-tiny"]
GELUS = gelu_layers(CONFIG)
PLUGIN = "plugin com.andrea::AndreaGelu v1"
TARGETS: tuple[EngineTarget, ...] = ("tensorrt", "tensorrt-rtx")


@dataclass
class Told(Silent):
    """A Progress that remembers the details."""

    details: list[tuple[str, str]] = field(default_factory=list)

    def detail(self, step: str, text: str) -> None:
        self.details.append((step, text))


@pytest.fixture(autouse=True)
def kept_logs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logs that errors point to are kept in pytest's folder instead of the machine's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("logs")))


@pytest.fixture(scope="module")
def plugin_library(cache_dir: Path) -> Path:
    return build_plugin_library(cache_dir).library


@pytest.fixture(params=TARGETS)
def backend(request: pytest.FixtureRequest) -> EngineBackend:
    """Each backend that can build here."""
    one = engine_backend(request.param)
    availability = one.can_build()
    if not availability.available:
        pytest.skip(f"{request.param}: {availability.reason}")
    return one


@pytest.fixture
def rtx() -> EngineBackend:
    one = EngineBackend("tensorrt-rtx")
    availability = one.can_build()
    if not availability.available:
        pytest.skip(f"tensorrt-rtx: {availability.reason}")
    return one


def _request(
    model: Path,
    output: Path,
    *,
    target: EngineTarget = "tensorrt-rtx",
    precision: EnginePrecision = "fp32",
    plugin_library: Path | None = None,
) -> EngineRequest:
    return EngineRequest(
        model=model,
        config=CONFIG,
        target=target,
        precision=precision,
        profile=Profile(),
        tf32=False,
        plugin_library=plugin_library,
        timeout_s=300,
        output=output,
    )


def _build(backend: EngineBackend, request: EngineRequest) -> EngineFacts:
    """Builds, and checks that nothing but the engine is left beside it."""
    before = set(request.output.parent.iterdir())
    facts = backend.build(request, Silent())
    assert set(request.output.parent.iterdir()) - before == {request.output}
    return facts


def _refused(backend: EngineBackend, request: EngineRequest) -> AndreaError:
    """The error of a build, which left nothing behind."""
    before = set(request.output.parent.iterdir())
    with pytest.raises(AndreaError) as caught:
        backend.build(request, Silent())
    assert set(request.output.parent.iterdir()) == before
    assert "\n" not in str(caught.value)
    return caught.value


# --- what every backend does -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_a_backend_that_cannot_build_says_why_and_how(target: EngineTarget, tiny_onnx: Path, tmp_path: Path) -> None:
    one = engine_backend(target)
    availability = one.can_build()
    if availability.available:
        assert all(re.match(r"\d+\.\d+", version) for version in availability.versions.values())
        return
    error = _refused(one, _request(tiny_onnx, tmp_path / "engine.plan", target=target))
    assert type(error) is BackendUnavailable
    assert str(error) == f"cannot build {target} engines: {availability.reason}"
    assert error.hint == availability.hint is not None


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("with_plugin", [True, False], ids=["plugin", "native"])
def test_engines(
    backend: EngineBackend,
    tiny_onnx: Path,
    plugin_library: Path,
    tmp_path: Path,
    precision: EnginePrecision,
    with_plugin: bool,
) -> None:
    output = tmp_path / f"{backend.target}-{precision}.plan"
    library = plugin_library if with_plugin else None
    facts = _build(
        backend, _request(tiny_onnx, output, target=backend.target, precision=precision, plugin_library=library)
    )
    assert facts.target == backend.target and facts.precision == precision
    assert facts.num_gelu_nodes == CONFIG.n_layer
    assert facts.num_plugin_layers == (CONFIG.n_layer if with_plugin else 0)
    assert facts.gelu_implementations == dict.fromkeys(GELUS, PLUGIN if with_plugin else "native")
    assert facts.num_network_layers > CONFIG.n_layer
    assert facts.plugin_embedded is with_plugin
    assert file_contains(output, plugin_library.read_bytes()) is with_plugin
    assert facts.tf32 is False
    assert facts.tensorrt_version == next(iter(backend.can_build().versions.values()))
    assert facts.engine_bytes == output.stat().st_size > 0
    assert facts.seconds > 0 and facts.peak_memory_bytes > facts.engine_bytes


def test_tf32_is_what_was_asked_and_read_back(backend: EngineBackend, tiny_onnx: Path, tmp_path: Path) -> None:
    request = replace(_request(tiny_onnx, tmp_path / "engine.plan", target=backend.target), tf32=True)
    assert _build(backend, request).tf32 is True


def test_progress_is_told_in_order(backend: EngineBackend, tiny_onnx: Path, tmp_path: Path) -> None:
    told = Told()
    backend.build(_request(tiny_onnx, tmp_path / "tiny.plan", target=backend.target), told)
    assert {step for step, _ in told.details} == {"engine tiny"}
    texts = [text for _, text in told.details]
    for earlier, later in (
        ("deriving the fp32 graph", "parsing the ONNX file"),
        ("parsing the ONNX file", "checking what each GELU became"),
        ("checking what each GELU became", "building the engine"),
        ("building the engine", "writing the engine"),
    ):
        assert texts.index(earlier) < texts.index(later)
    assert not [text for text in texts if "Int64 binding" in text]


def test_an_existing_engine_is_replaced_or_left_as_it_was(
    backend: EngineBackend, tiny_onnx: Path, tmp_path: Path
) -> None:
    output = tmp_path / "engine.plan"
    output.write_bytes(b"old")
    with pytest.raises(PluginError):
        backend.build(
            _request(tiny_onnx, output, target=backend.target, plugin_library=tmp_path / "absent.so"), Silent()
        )
    assert output.read_bytes() == b"old"
    backend.build(_request(tiny_onnx, output, target=backend.target), Silent())
    assert output.stat().st_size > 1000
    assert list(tmp_path.iterdir()) == [output]


def test_a_folder_that_is_not_there(backend: EngineBackend, tiny_onnx: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent is not a folder"):
        backend.build(_request(tiny_onnx, tmp_path / "absent" / "e.plan", target=backend.target), Silent())


def test_a_narrow_profile_builds(backend: EngineBackend, tiny_onnx: Path, tmp_path: Path) -> None:
    one = ShapeRange(min=1, opt=1, max=1)
    profile = Profile(batch=one, sequence=one, past=ShapeRange(min=0, opt=0, max=0))
    _build(backend, replace(_request(tiny_onnx, tmp_path / "e.plan", target=backend.target), profile=profile))


# --- plugin libraries ------------------------------------------------------------------------------------------------


def _library(folder: Path, source: str) -> Path:
    (folder / "library.cpp").write_text(source)
    library = folder / "library.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, folder / "library.cpp"], check=True)
    return library


def test_a_missing_library(backend: EngineBackend, tiny_onnx: Path, tmp_path: Path) -> None:
    error = _refused(
        backend,
        _request(tiny_onnx, tmp_path / "e.plan", target=backend.target, plugin_library=tmp_path / "absent.so"),
    )
    assert type(error) is PluginError
    assert str(error) == f"plugin library {tmp_path}/absent.so: no such file"


def test_a_library_without_get_creators(backend: EngineBackend, tiny_onnx: Path, tmp_path: Path) -> None:
    library = _library(tmp_path, "int nothing;")
    error = _refused(backend, _request(tiny_onnx, tmp_path / "e.plan", target=backend.target, plugin_library=library))
    assert type(error) is PluginError
    assert str(error).startswith(f"{library} is not a TensorRT plugin library: ")
    assert "getCreators" in str(error)


def test_a_library_without_creators(backend: EngineBackend, tiny_onnx: Path, tmp_path: Path) -> None:
    library = _library(
        tmp_path,
        """
        extern "C" void* const* getCreators(int& count) { static void* const none[1] = {}; count = 0; return none; }
        extern "C" void setLoggerFinder(void*) {}
        """,
    )
    error = _refused(backend, _request(tiny_onnx, tmp_path / "e.plan", target=backend.target, plugin_library=library))
    assert type(error) is PluginError
    assert str(error).startswith(f"{library} is not a TensorRT plugin library: ")
    assert "No creator returned" in str(error)


def test_a_library_that_crashes_when_loaded(backend: EngineBackend, tiny_onnx: Path, tmp_path: Path) -> None:
    library = _library(
        tmp_path,
        """
        #include <cstdlib>
        extern "C" void* const* getCreators(int&) { std::abort(); }
        extern "C" void setLoggerFinder(void*) {}
        """,
    )
    error = _refused(backend, _request(tiny_onnx, tmp_path / "e.plan", target=backend.target, plugin_library=library))
    assert type(error) is BuildError
    assert "crashed (SIGABRT) while loading the plugin library" in str(error)


# --- models ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(tiny_onnx: Path, tmp_path: Path) -> Path:
    """A folder with a copy of the weights, for a damaged ``model.onnx`` beside them."""
    folder = tmp_path / "damaged"
    folder.mkdir()
    shutil.copy(tiny_onnx.with_name("model.onnx.data"), folder)
    return folder / "model.onnx"


def test_what_the_parser_refuses_is_passed_on(
    backend: EngineBackend, tiny_onnx: Path, damaged: Path, tmp_path: Path
) -> None:
    model = ir.load(tiny_onnx)
    next(node for node in model.graph if node.name == "mask/And").op_type = "NoSuchOperator"
    ir.save(model, damaged)
    error = _refused(backend, _request(damaged, tmp_path / "e.plan", target=backend.target))
    assert type(error) is BuildError
    assert "TensorRT refused: " in str(error)
    assert "NoSuchOperator" in str(error) and "mask/And" in str(error)
    assert "cudaError" not in str(error)


def test_a_gelu_that_lost_an_attribute(
    backend: EngineBackend, tiny_onnx: Path, damaged: Path, plugin_library: Path, tmp_path: Path
) -> None:
    model = ir.load(tiny_onnx)
    del gelu_nodes(model, andrea_gelu())[1].attributes["plugin_namespace"]
    ir.save(model, damaged)
    error = _refused(
        backend, _request(damaged, tmp_path / "e.plan", target=backend.target, plugin_library=plugin_library)
    )
    assert type(error) is PassError
    assert "blocks.1.mlp.gelu" in str(error)


def test_a_block_whose_gelu_is_another_operator(
    backend: EngineBackend, tiny_onnx: Path, damaged: Path, plugin_library: Path, tmp_path: Path
) -> None:
    model = ir.load(tiny_onnx)
    node = gelu_nodes(model, andrea_gelu())[1]
    node.domain, node.op_type = "", "Gelu"
    node.attributes.clear()
    ir.save(model, damaged)
    error = _refused(
        backend, _request(damaged, tmp_path / "e.plan", target=backend.target, plugin_library=plugin_library)
    )
    assert type(error) is BuildError
    assert f"has GELUs {GELUS[0]}, expected {GELUS[0]}, {GELUS[1]}" in str(error)


# --- the proof: what the parser made is counted, whatever the file promised -------------------------------------------


def _parse_and_build(
    rtx: EngineBackend, model: Path, folder: Path, library: Path | None, *, plugin_version: str = "1"
) -> None:
    """Gives the worker a file of the test's own in place of a derived one."""
    plugin = {
        "library": str(library),
        "name": "AndreaGelu",
        "version": plugin_version,
        "namespace": "com.andrea",
    }
    folder.mkdir()
    with rtx._child(folder, BuildError) as child:
        child.ask(
            "build",
            {
                "model": str(model),
                "output": str(folder / "engine.plan"),
                "gelu_layers": GELUS,
                "plugin": plugin if library is not None else None,
                "profile": profile_shapes(CONFIG, PRECISIONS["fp32"], Profile()),
                "tf32": False,
                "decomposable_attention": True,
            },
            timeout_s=300,
            detail=lambda text: None,
        )


def test_a_library_of_another_version_is_caught(
    rtx: EngineBackend, tiny_onnx: Path, plugin_library: Path, tmp_path: Path
) -> None:
    with pytest.raises(PluginError) as caught:
        _parse_and_build(rtx, tiny_onnx, tmp_path / "work", plugin_library, plugin_version="2")
    assert str(caught.value) == (f"{plugin_library} has no com.andrea::AndreaGelu v2; it has com.andrea::AndreaGelu v1")


def test_a_parser_that_takes_the_function_body_is_caught(
    rtx: EngineBackend, tiny_onnx: Path, damaged: Path, plugin_library: Path, tmp_path: Path
) -> None:
    """One node without its attributes: the parser silently takes the function body, though the plugin is loaded."""
    model = ir.load(tiny_onnx)
    gelu_nodes(model, andrea_gelu())[1].attributes.clear()
    ir.save(model, damaged)
    with pytest.raises(BuildError) as caught:
        _parse_and_build(rtx, damaged, tmp_path / "work", plugin_library)
    assert str(caught.value) == (
        f"the parsed network has 1 plugin layers for 2 GELUs, each of which should be {PLUGIN}: "
        f"blocks.0.mlp.gelu: {PLUGIN}; blocks.1.mlp.gelu: ACTIVATION of the function body"
    )


def test_a_plugin_where_none_is_wanted_is_caught(
    rtx: EngineBackend, tiny_onnx: Path, damaged: Path, plugin_library: Path, tmp_path: Path
) -> None:
    """The GELUs are native, and a plugin layer stands elsewhere in the network."""
    model = ir.load(tiny_onnx)
    gelu = gelu_nodes(model, andrea_gelu())[0]
    context = next(node for node in model.graph if node.name == "blocks.1.attn.context")
    stray = ir.Node(
        gelu.domain, gelu.op_type, [context.outputs[0]], list(gelu.attributes.values()), name="stray", num_outputs=1
    )
    for use in list(context.outputs[0].uses()):
        use.node.replace_input_with(use.idx, stray.outputs[0])
    model.graph.insert_after(context, stray)
    stray.replace_input_with(0, context.outputs[0])
    ir.save(model, damaged)
    with pytest.raises(
        BuildError, match=r"3 plugin layers for 2 GELUs.*other plugin layers: stray: plugin com\.andrea"
    ):
        _parse_and_build(rtx, damaged, tmp_path / "work", plugin_library)


def test_without_the_plugin_the_canonical_file_parses_natively(
    rtx: EngineBackend, tiny_onnx: Path, tmp_path: Path
) -> None:
    """Users who give ``model.onnx`` to TensorRT themselves, with no plugin, get the function body."""
    _parse_and_build(rtx, tiny_onnx, tmp_path / "work", None)
    assert (tmp_path / "work" / "engine.plan").stat().st_size > 0


def test_a_native_file_does_not_prove_a_plugin(
    rtx: EngineBackend, tiny_onnx: Path, damaged: Path, plugin_library: Path, tmp_path: Path
) -> None:
    model = ir.load(tiny_onnx)
    run_passes(model, NativeGelu(andrea_gelu()))
    ir.save(model, damaged)
    with pytest.raises(BuildError, match=r"0 plugin layers for 2 GELUs.*blocks\.0\.mlp\.gelu: ACTIVATION"):
        _parse_and_build(rtx, damaged, tmp_path / "work", plugin_library)


def test_a_broken_library_name_is_what_the_workaround_is_for(
    rtx: EngineBackend, tiny_onnx: Path, plugin_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real abort of TensorRT. Fails once the wheel works without the workaround, which can then go."""
    monkeypatch.setattr("andrea_export.targets.tensorrt.backend._unversioned_rtx_library", lambda folder: None)
    error = _refused(rtx, _request(tiny_onnx, tmp_path / "e.plan", plugin_library=plugin_library))
    assert type(error) is BuildError
    assert str(error) == (
        "TensorRT-RTX crashed (SIGABRT) while parsing the ONNX file: terminate called without an active exception"
    )
