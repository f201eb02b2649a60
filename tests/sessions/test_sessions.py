"""One suite for every backend that can run here: same inputs, same names, same answers, same refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from andrea_export.core.errors import BackendUnavailable, RunError, UsageError
from andrea_export.core.names import graph_outputs, layer_names
from andrea_export.sessions.base import Session, zero_cache
from andrea_export.sessions.onnxruntime import PROVIDERS, OnnxSession, provider_availability
from andrea_export.sessions.torch_reference import TorchSession
from andrea_export.weights.load import LoadedModel

Opener = Callable[[LoadedModel, Path, tuple[str, ...]], Session]

SESSIONS: dict[str, Opener] = {
    "torch-fp64": lambda loaded, _, layers: TorchSession(loaded.model, precision="fp64", layers=layers),
    "torch-fp32": lambda loaded, _, layers: TorchSession(loaded.model, precision="fp32", layers=layers),
    **{
        f"onnxruntime-{name}": lambda _, model, layers, name=name: OnnxSession(model, name, taps=layers)
        for name in PROVIDERS
        if provider_availability(name).available
    },
}


@pytest.fixture(params=SESSIONS)
def opened(request: pytest.FixtureRequest, tiny: LoadedModel, tiny_onnx: Path) -> Iterator[Session]:
    """A session of every backend, with every layer visible."""
    with SESSIONS[request.param](tiny, tiny_onnx, tuple(layer_names(tiny.config))) as session:
        yield session


def feeds(loaded: LoadedModel, *, batch: int = 2, sequence: int = 5, past: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(batch + sequence)
    total = past + sequence
    cache = zero_cache(loaded.config, batch=batch, past=past, dtype=np.dtype(np.float32))
    for value in cache.values():
        value[:] = generator.standard_normal(value.shape)
    return {
        "input_ids": generator.integers(0, loaded.config.vocab_size, (batch, sequence)),
        "attention_mask": np.ones((batch, total), np.int64),
        "position_ids": np.tile(np.arange(past, total), (batch, 1)),
        **cache,
    }


@pytest.mark.parametrize(("batch", "sequence", "past"), [(1, 1, 0), (2, 5, 0), (3, 1, 7), (1, 4, 9)])
def test_every_output_and_layer_is_there_and_is_torchs(
    opened: Session, tiny: LoadedModel, batch: int, sequence: int, past: int
) -> None:
    inputs = feeds(tiny, batch=batch, sequence=sequence, past=past)
    outputs = opened.run(inputs)
    names = [spec.name for spec in graph_outputs(tiny.config)]
    assert [name for name in opened.output_names if name in names] == names
    with TorchSession(tiny.model, layers=tuple(layer_names(tiny.config))) as torch_session:
        expected = torch_session.run(inputs)
    for name in layer_names(tiny.config):
        assert outputs[name].shape == expected[name].shape, name
        scale = max(1.0, float(np.abs(expected[name]).max()))
        # Two fp32 implementations of one formula; the bound is 1e-4 as derived in tests/graph/test_canonical.py.
        assert np.abs(outputs[name].astype(float) - expected[name].astype(float)).max() <= 1e-4 * scale, name
    assert outputs["present.0.key"].shape[2] == past + sequence


def test_running_twice_gives_the_same(opened: Session, tiny: LoadedModel) -> None:
    inputs = feeds(tiny)
    first, second = opened.run(inputs)["logits"], opened.run(inputs)["logits"]
    assert np.array_equal(first, second)


@pytest.mark.parametrize("id_", [-400, 321])
def test_a_token_outside_the_vocabulary_is_an_error(opened: Session, tiny: LoadedModel, id_: int) -> None:
    inputs = feeds(tiny)
    inputs["input_ids"][0, 0] = id_
    with pytest.raises(RunError):
        opened.run(inputs)


def test_lengths_that_do_not_agree_are_an_error(opened: Session, tiny: LoadedModel) -> None:
    inputs = feeds(tiny)
    inputs["position_ids"] = inputs["position_ids"][:, :3]
    with pytest.raises(RunError):
        opened.run(inputs)


def test_an_unknown_provider_names_those_there_are(tiny_onnx: Path) -> None:
    with pytest.raises(UsageError, match="unknown provider 'npu'") as caught:
        OnnxSession(tiny_onnx, "npu")
    assert "cpu, cuda, tensorrt, tensorrt-rtx" in str(caught.value.hint)


@pytest.mark.parametrize("provider", [name for name in PROVIDERS if not provider_availability(name).available])
def test_a_missing_provider_is_an_error_never_the_cpu(provider: str, tiny_onnx: Path) -> None:
    with pytest.raises(BackendUnavailable) as caught:
        OnnxSession(tiny_onnx, provider)
    assert caught.value.exit_code == 3 and "pip install" in str(caught.value.hint)


def test_a_provider_that_falls_back_is_an_error(tiny_onnx: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime-gpu without a driver offers CUDA, then gives a CPU session; so does this one, told it has CUDA."""
    import onnxruntime

    real = onnxruntime.InferenceSession
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(
        onnxruntime, "InferenceSession", lambda *given, providers, **_: real(*given, providers=["CPUExecutionProvider"])
    )
    with pytest.raises(BackendUnavailable, match="fell back to CPUExecutionProvider"):
        OnnxSession(tiny_onnx, "cuda")


def test_a_file_that_is_no_model_is_an_error(tmp_path: Path) -> None:
    broken = tmp_path / "model.onnx"
    broken.write_bytes(b"not a protobuf")
    with pytest.raises(RunError, match=r"onnxruntime cannot load .*model\.onnx"):
        OnnxSession(broken)
