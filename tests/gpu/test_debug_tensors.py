"""Reading an engine's inner layers: what the listener does, with fakes for a GPU; what the comparison says."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

import debug_tensors
import debug_worker
import part_layers
from engine_layers import LayerComparison, References, compare_layers, torch_references
from gpu_parts import PartResult

from andrea_export.compare.inputs import seeded_cases
from andrea_export.core.errors import BuildError, RunError
from andrea_export.core.names import layer_names, present_names
from andrea_export.sessions.torch_reference import TorchSession
from andrea_export.weights.load import LoadedModel


def tensorrt() -> Any:
    """TensorRT-RTX where it is installed, so that its own listener class is derived from; else what of it is used."""
    if importlib.util.find_spec("tensorrt_rtx") is not None:
        import tensorrt_rtx

        return tensorrt_rtx
    location = SimpleNamespace(HOST=0, DEVICE=1)
    return SimpleNamespace(IDebugListener=type("IDebugListener", (), {}), TensorLocation=location)


def capsule(address: int) -> Any:
    """A pointer as TensorRT's binding hands it over."""
    new = ctypes.pythonapi.PyCapsule_New
    new.argtypes, new.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p], ctypes.py_object
    return new(address, None, None)


def tell(listener: Any, name: str, values: torch.Tensor, type_name: str) -> bool:
    """Calls the listener as TensorRT does, for a tensor in host memory."""
    return bool(
        listener.process_debug_tensor(
            capsule(values.data_ptr() or 1),  # an empty tensor has no address
            tensorrt().TensorLocation.HOST,
            SimpleNamespace(name=type_name),
            tuple(values.shape),
            name,
            0,
        )
    )


@pytest.mark.parametrize(
    ("type_name", "dtype"),
    [("FLOAT", torch.float32), ("HALF", torch.float16), ("BF16", torch.bfloat16), ("INT64", torch.int64)],
)
def test_the_listener_keeps_a_copy_of_what_it_is_shown(type_name: str, dtype: torch.dtype) -> None:
    listener = debug_tensors.make_listener(tensorrt())
    values = torch.arange(24).reshape(2, 3, 4).to(dtype)
    shown = values.clone()
    assert tell(listener, "blocks.0.mlp.gelu", shown, type_name)
    shown.zero_()  # the address is TensorRT's again
    assert torch.equal(listener.tensors["blocks.0.mlp.gelu"], values)
    assert listener.tensors["blocks.0.mlp.gelu"].dtype == dtype
    assert tell(listener, "empty", torch.empty((2, 0), dtype=dtype), type_name)
    assert listener.tensors["empty"].shape == (2, 0)
    assert listener.problems == {}


def test_what_cannot_be_read_is_named_and_nothing_is_thrown() -> None:
    listener = debug_tensors.make_listener(tensorrt())
    assert tell(listener, "odd", torch.zeros(3), "FP4")
    assert listener.tensors == {}
    assert "KeyError" in listener.problems["odd"]


class Context:
    """An execution context, as far as debug tensors go."""

    def __init__(self, *, takes: bool = True, turns_on: bool = True) -> None:
        self.takes, self.turns_on = takes, turns_on
        self.listener: Any = None

    def set_debug_listener(self, listener: Any) -> bool:
        self.listener = listener
        return self.takes

    @property
    def unfused_tensors_debug_state(self) -> bool:
        return self.turns_on and self.state

    @unfused_tensors_debug_state.setter
    def unfused_tensors_debug_state(self, state: bool) -> None:
        self.state = state


def test_a_listener_is_attached_and_turned_on_or_it_is_said_why_not() -> None:
    context = Context()
    listener = debug_tensors.attach(tensorrt(), context)
    assert context.listener is listener
    assert context.unfused_tensors_debug_state
    with pytest.raises(RunError, match="took no debug listener"):
        debug_tensors.attach(tensorrt(), Context(takes=False))
    with pytest.raises(RunError, match="would not turn on"):
        debug_tensors.attach(tensorrt(), Context(turns_on=False))


def test_a_network_that_cannot_be_marked_is_an_error() -> None:
    with pytest.raises(BuildError, match=r"10\.11"):
        debug_tensors.mark(SimpleNamespace())
    with pytest.raises(BuildError, match="would not mark"):
        debug_tensors.mark(SimpleNamespace(mark_unfused_tensors_as_debug_tensors=lambda: False))


class Network:
    """A network, as far as marks go."""

    def __init__(self) -> None:
        self.num_marks = 0

    def mark_unfused_tensors_as_debug_tensors(self) -> bool:
        self.num_marks += 1
        return True


def test_the_worker_marks_each_network_it_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT says of no network or engine whether it has these marks, so the call itself is what can be seen."""
    network = Network()

    def build(request: Any, doing: Any, *, mark: Any = None) -> dict[str, Any]:
        mark(network)
        return {}

    monkeypatch.setattr(debug_worker.worker_build, "build", build)
    debug_worker.DebugWorker(SimpleNamespace(doing=None)).build({})
    assert network.num_marks == 1


def test_a_run_returns_what_could_not_be_read_and_forgets_the_run_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = debug_tensors.make_listener(tensorrt())
    runner = object.__new__(debug_worker.DebugRunner)
    runner._listener = listener
    runner.context = SimpleNamespace(engine=SimpleNamespace(num_layers=7))

    def run(self: Any, feeds: Any, folder: str) -> dict[str, Any]:
        tell(listener, "read", torch.ones(3), "FLOAT")
        for name in feeds:
            tell(listener, name, torch.zeros(3), "FP4")
        return {}

    monkeypatch.setattr(debug_worker.worker.EngineRunner, "run", run)
    for odd in ({"odd": {}}, {}):
        layouts = runner.run(odd, str(tmp_path))
        assert set(layouts) == {"read", debug_tensors.REPORT}
        characters = np.fromfile(layouts[debug_tensors.REPORT]["file"], np.int64)
        report = json.loads("".join(map(chr, characters)))
        assert set(report["problems"]) == set(odd)
        assert report["num_engine_layers"] == 7


class Engine(TorchSession):
    """torch in fp32 in an engine's place: without the layers a builder fuses, and with a tensor of its own."""

    fused: tuple[str, ...] = ("blocks.0.ln_1", "blocks.1.attn.qkv")
    fault: str | None = None
    problems: Mapping[str, str] = MappingProxyType({})
    transposed: str | None = None
    only_once: str | None = None
    num_runs = 0

    def run(self, feeds: Any) -> dict[str, Any]:
        self.num_runs += 1
        found = {name: value for name, value in super().run(feeds).items() if name not in self.fused}
        if self.fault is not None:
            found[self.fault] = found[self.fault] * np.float32(1.001)
        if self.transposed is not None:
            found[self.transposed] = found[self.transposed].swapaxes(0, 1)
        if self.only_once is not None and self.num_runs > 1:
            del found[self.only_once]
        found = {name: value for name, value in found.items() if name not in self.problems}
        report = debug_tensors.report_tensor(dict(self.problems), 9).numpy()
        return {**found, debug_tensors.REPORT: report, "__myl_Add_3": np.zeros(3, np.float32)}


@pytest.fixture(scope="module")
def references(tiny: LoadedModel) -> References:
    return torch_references(tiny.model, seeded_cases(tiny.config), "fp32")


@pytest.fixture
def engine(tiny: LoadedModel) -> Engine:
    return Engine(tiny.model, layers=tuple(layer_names(tiny.config)))


def judged(found: LayerComparison, *, plugin: bool = True, shipped_layers: int | None = 9) -> PartResult:
    result = PartResult()
    part_layers.judge(result, "one", found, plugin=plugin, shipped_layers=shipped_layers)
    return result


def test_every_layer_is_compared_or_named_as_fused_away(engine: Engine, references: References) -> None:
    found = compare_layers(engine, references)
    assert found.fused_away == Engine.fused
    assert set(found.compared) == set(layer_names(references.config)) - set(Engine.fused)
    assert found.others == ("__myl_Add_3",)
    assert found.out_of_budget == found.unread == found.other_shape == found.silent_blocks == ()
    assert found.num_engine_layers == 9
    assert 0 < found.worst_share <= 1
    assert judged(found).failures == []


def test_a_fault_is_found_in_its_layer(engine: Engine, references: References) -> None:
    engine.fault = "blocks.1.mlp.gelu"
    found = compare_layers(engine, references)
    assert found.out_of_budget == (found.worst_layer,) == ("blocks.1.mlp.gelu",)
    assert judged(found).failures == ["one: out of budget: blocks.1.mlp.gelu"]


def test_what_could_not_be_read_is_a_failure_and_not_fused_away(engine: Engine, references: References) -> None:
    engine.problems = {"blocks.0.mlp.gelu": "KeyError: 'FP4'"}
    engine.only_once = "blocks.1.mlp.gelu"
    found = compare_layers(engine, references)
    assert found.fused_away == Engine.fused
    assert found.unread == ("blocks.0.mlp.gelu: KeyError: 'FP4'", "blocks.1.mlp.gelu: shown in 1 of 2 runs")
    assert judged(found).failures == [f"one: could not be read: {'; '.join(found.unread)}"]


def test_another_shape_is_a_failure_and_the_other_layers_are_compared(engine: Engine, references: References) -> None:
    engine.transposed = "blocks.0.mlp.gelu"
    found = compare_layers(engine, references)
    assert [line.split(":")[0] for line in found.other_shape] == ["blocks.0.mlp.gelu"]
    assert "blocks.1.mlp.gelu" in found.compared
    assert len(judged(found).failures) == 1


def test_an_engine_whose_listener_is_never_called_fails(engine: Engine, references: References) -> None:
    """Its outputs alone can be compared, and they are right."""
    blocks = range(references.config.n_layer)
    outputs = {"logits", *(name for index in blocks for name in present_names(index))}
    engine.fused = tuple(name for name in layer_names(references.config) if name not in outputs)
    found = compare_layers(engine, references)
    assert set(found.compared) == outputs
    assert found.silent_blocks == (0, 1)
    assert judged(found).failures == ["one: no inner layer was compared in the blocks 0, 1"]
    unseen = dataclasses.replace(found, others=())
    assert judged(unseen, plugin=False).failures == ["one: the engine showed no debug tensor"]


def test_marks_that_change_the_engine_are_a_failure(engine: Engine, references: References) -> None:
    found = compare_layers(engine, references)
    assert judged(found, shipped_layers=8).failures == ["one: 9 layers with debug tensors, 8 as shipped"]
    assert any("not known" in note for note in judged(found, shipped_layers=None).notes)
