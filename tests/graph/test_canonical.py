"""The canonical ONNX file: its names and types, its one copy of each weight, its equality with torch at every shape.

The bound of 1e-4 on logits: fp32 carries 2^-24 of relative rounding error per operation; along the longest chain of
ANDREA-120M (12 blocks of two sublayers, sums of at most 3,072 terms, each sum's error growing as the square root of
its length) two correct implementations differ by some sqrt(24 * 3072) * 2^-24 = 1.6e-5 of the logits' scale. That scale
is 3.0 for ANDREA-120M's seeded weights (the largest of 1,024 tokens' logits), so 5e-5, and twice that for the worst
element. Validation judges by torch's own error instead, which is tighter.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch

from andrea_export.core.errors import ExportError
from andrea_export.core.names import BLOCK_LAYERS, MODULE_KEY, gelu_layers, graph_inputs, graph_outputs
from andrea_export.graph.canonical.export import export_canonical
from andrea_export.graph.canonical.metadata import read_canonical_info
from andrea_export.operators.sources import andrea_gelu
from andrea_export.sessions.base import zero_cache
from andrea_export.sessions.onnxruntime import OnnxSession
from andrea_export.weights.load import LoadedModel, load_model
from andrea_export.weights.origin import WeightsOrigin
from andrea_model.config import AndreaConfig
from andrea_model.model import Andrea, build_model, position_ids_from_mask

BOUND = 1e-4
Cache = dict[str, npt.NDArray[np.float32]]


def torch_logits(model: Andrea, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Logits of whole rows without padding or cache."""
    with torch.inference_mode():
        logits: npt.NDArray[np.float32] = model(torch.from_numpy(ids))[0].numpy()
    return logits


def tokens(model: Andrea, *shape: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(sum(shape)).integers(0, model.config.vocab_size, shape)


def run_onnx(
    session: OnnxSession, model: Andrea, ids: npt.NDArray[np.int64], cache: Cache | None = None, mask: object = None
) -> dict[str, npt.NDArray[np.float32]]:
    batch, sequence = ids.shape
    cache = zero_cache(model.config, batch=batch, past=0, dtype=np.dtype(np.float32)) if cache is None else cache
    past = cache["past_key_values.0.key"].shape[2]
    attention_mask = np.ones((batch, past + sequence), np.int64) if mask is None else np.asarray(mask)
    positions = position_ids_from_mask(torch.from_numpy(attention_mask), sequence).numpy()
    return session.run({"input_ids": ids, "attention_mask": attention_mask, "position_ids": positions, **cache})


def as_cache(outputs: dict[str, npt.NDArray[np.float32]]) -> Cache:
    return {name.replace("present", "past_key_values"): value for name, value in outputs.items() if "present" in name}


def check_every_shape(session: OnnxSession, model: Andrea) -> None:
    """1 token, 1024 tokens, 1023 cached + 1, batch 3, padded rows: each equal to torch's plain full forward."""
    for shape in ((1, 1), (3, 17), (1, 1024)):
        ids = tokens(model, *shape)
        whole = torch_logits(model, ids)
        assert np.abs(run_onnx(session, model, ids)["logits"] - whole).max() <= BOUND, shape

    first = run_onnx(session, model, ids[:, :1023])
    last = run_onnx(session, model, ids[:, 1023:], as_cache(first))
    assert last["present.0.key"].shape[2] == 1024
    assert np.abs(last["logits"][:, -1] - whole[:, -1]).max() <= BOUND

    lengths, width = (5, 11, 16), 16
    padded = np.zeros((3, width), np.int64)
    mask = np.zeros((3, width), np.int64)
    rows = [tokens(model, 1, length) for length in lengths]
    for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        padded[index, width - length :], mask[index, width - length :] = row[0], 1
    batch = run_onnx(session, model, padded, mask=mask)
    step = run_onnx(
        session, model, tokens(model, 3, 1), as_cache(batch), np.concatenate([mask, np.ones((3, 1), np.int64)], axis=1)
    )
    for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        alone = np.concatenate([row, tokens(model, 3, 1)[index : index + 1]], axis=1)
        expected = torch_logits(model, alone)[0]
        assert np.abs(batch["logits"][index, width - length :] - expected[:-1]).max() <= BOUND
        assert np.abs(step["logits"][index, 0] - expected[-1]).max() <= BOUND


def test_every_shape_equals_torch(tiny: LoadedModel, tiny_onnx: Path) -> None:
    with OnnxSession(tiny_onnx) as session:
        check_every_shape(session, tiny.model)


@pytest.mark.full
def test_every_shape_of_120m_equals_torch(andrea_120m: LoadedModel, andrea_120m_onnx: Path) -> None:
    weights = andrea_120m_onnx.with_name("model.onnx.data")
    assert weights.stat().st_size < 4 * 92_331_264 + 64 * 1024  # the tied matrix once
    with OnnxSession(andrea_120m_onnx) as session:
        check_every_shape(session, andrea_120m.model)


def test_decode_step_by_step_equals_one_full_forward(tiny: LoadedModel, tiny_onnx: Path) -> None:
    ids = tokens(tiny.model, 2, 9)
    with OnnxSession(tiny_onnx) as session:
        cache, steps = None, []
        for index in range(ids.shape[1]):
            outputs = run_onnx(session, tiny.model, ids[:, index : index + 1], cache)
            cache = as_cache(outputs)
            steps.append(outputs["logits"])
    assert np.abs(np.concatenate(steps, axis=1) - torch_logits(tiny.model, ids)).max() <= BOUND


def test_the_checker_accepts_the_file(tiny_onnx: Path) -> None:
    onnx.checker.check_model(str(tiny_onnx), full_check=True)


def test_boundary_names_types_and_dynamic_dimensions(tiny: LoadedModel, tiny_onnx: Path) -> None:
    graph = onnx.load(tiny_onnx, load_external_data=False).graph
    for values, specs in ((graph.input, graph_inputs(tiny.config)), (graph.output, graph_outputs(tiny.config))):
        found = [
            (value.name, tuple(dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim))
            for value in values
        ]
        assert found == [(spec.name, spec.dims) for spec in specs]


def test_opset_and_operators(tiny: LoadedModel, tiny_onnx: Path) -> None:
    model = onnx.load(tiny_onnx, load_external_data=False)
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": 23, "com.andrea": 1}
    count = [node.op_type for node in model.graph.node].count
    assert (count("AndreaGelu"), count("Attention"), count("LayerNormalization")) == (2, 2, 5)
    assert [(f.domain, f.name, [n.op_type for n in f.node]) for f in model.functions] == [
        ("com.andrea", "AndreaGelu", ["Gelu"])
    ]
    assert model.functions[0].node[0].attribute[0].s == b"tanh"


def test_each_gelu_names_its_plugin_and_its_module(tiny: LoadedModel, tiny_onnx: Path) -> None:
    op = andrea_gelu()
    nodes = [n for n in onnx.load(tiny_onnx, load_external_data=False).graph.node if n.op_type == op.op_type]
    assert tuple(node.name for node in nodes) == gelu_layers(tiny.config)
    for node in nodes:
        attributes = {a.name: a.s.decode() for a in node.attribute}
        assert attributes == {"plugin_namespace": op.plugin_namespace, "plugin_version": op.plugin_version}
        assert list(node.output) == [node.name]


def test_nodes_carry_their_module_path(tiny: LoadedModel, tiny_onnx: Path) -> None:
    nodes = onnx.load(tiny_onnx, load_external_data=False).graph.node
    names = {node.name for node in nodes}
    for index in range(tiny.config.n_layer):
        assert {f"blocks.{index}.{layer}" for layer in BLOCK_LAYERS} <= names
    assert len(names) == len(nodes)
    modules = set(dict(tiny.model.named_modules()))
    for node in nodes:
        metadata = {entry.key: entry.value for entry in node.metadata_props}
        assert set(metadata) == {MODULE_KEY} and metadata[MODULE_KEY] in modules
        assert not node.doc_string


@pytest.mark.traces
def test_the_same_model_gives_the_same_bytes(tiny: LoadedModel, tiny_onnx: Path, tmp_path: Path) -> None:
    again = export_canonical(tiny, tmp_path)
    assert again.read_bytes() == tiny_onnx.read_bytes()
    assert (tmp_path / "model.onnx.data").read_bytes() == tiny_onnx.with_name("model.onnx.data").read_bytes()


def test_the_tied_matrix_is_stored_once(tiny: LoadedModel, tiny_onnx: Path) -> None:
    graph = onnx.load(tiny_onnx, load_external_data=False).graph
    shape = [tiny.config.vocab_size, tiny.config.d_model]
    assert [t.name for t in graph.initializer if sorted(t.dims) == sorted(shape)] == ["token_embed.weight"]
    num_bytes = sum(parameter.numel() for parameter in tiny.model.parameters()) * 4
    assert num_bytes <= tiny_onnx.with_name("model.onnx.data").stat().st_size + 16 * 1024 <= num_bytes + 64 * 1024


def test_the_file_says_what_it_is(tiny: LoadedModel, tiny_onnx: Path, tmp_path: Path) -> None:
    info = read_canonical_info(tiny_onnx)
    assert info is not None and info.config == tiny.config and info.origin == tiny.origin
    untrained = export_canonical(load_model(preset="andrea-tiny", checkpoint=None, seed=3), tmp_path)
    metadata = {entry.key: entry.value for entry in onnx.load(untrained, load_external_data=False).metadata_props}
    assert metadata["andrea.weights"].startswith("untrained weights")
    assert json.loads(metadata["andrea.origin"])["seed"] == 3


def test_no_path_of_this_machine_is_in_the_file(tiny_onnx: Path) -> None:
    content = tiny_onnx.read_bytes()
    assert b"/site-packages/" not in content and str(Path.home()).encode() + b"/" not in content


def test_a_position_past_the_context_is_refused_not_wrapped(tiny: LoadedModel, tiny_onnx: Path) -> None:
    from andrea_export.core.errors import RunError

    cache = zero_cache(tiny.config, batch=1, past=0, dtype=np.dtype(np.float32))
    feeds = {"input_ids": np.zeros((1, 1), np.int64), "attention_mask": np.ones((1, 1), np.int64)}
    with OnnxSession(tiny_onnx) as session, pytest.raises(RunError, match="position_embed"):
        session.run({**feeds, "position_ids": np.array([[1024]]), **cache})


@pytest.mark.parametrize(
    "config",
    [
        AndreaConfig(d_model=4, n_head=1, n_layer=1, n_ctx=4, vocab_size=3, mlp_dim=4),
        AndreaConfig(d_model=16, n_head=2, n_layer=3, n_ctx=32, vocab_size=258, mlp_dim=32),
    ],
)
def test_no_weight_of_a_small_model_is_folded_into_a_constant(config: AndreaConfig, tmp_path: Path) -> None:
    """The exporter's optimizer folds operations on small weights, and the traced weights are not the model's."""
    model = build_model(config, seed=0)
    path = export_canonical(
        LoadedModel(model=model, config=config, origin=WeightsOrigin(preset=None, seed=0)), tmp_path
    )
    ids = tokens(model, 1, 3)
    with OnnxSession(path) as session:
        assert np.abs(run_onnx(session, model, ids)["logits"] - torch_logits(model, ids)).max() <= BOUND


@pytest.mark.traces
def test_an_interrupt_that_the_exporter_turned_into_its_own_error_is_one(
    tiny: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_arguments: object, **_named: object) -> None:
        try:
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt as error:
                raise ValueError("step 1/3") from error
        except ValueError as error:
            raise RuntimeError("Failed to export") from error

    monkeypatch.setattr(torch.onnx, "export", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export_canonical(tiny, tmp_path)


@pytest.mark.traces
def test_the_exporters_failure_is_its_cause_in_one_plain_line(
    tiny: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_arguments: object, **_named: object) -> None:
        try:
            raise ValueError("\x1b[96mno such operator\x1b[0m\nand more")
        except ValueError as error:
            raise RuntimeError("Failed to export the model. Next steps:") from error

    monkeypatch.setattr(torch.onnx, "export", failing)
    with pytest.raises(ExportError) as caught:
        export_canonical(tiny, tmp_path)
    assert str(caught.value) == "torch.onnx.export failed: no such operator"
