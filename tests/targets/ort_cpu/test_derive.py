"""The graphs of each precision: which files, which operators, which bytes are shared, what a recipe may keep higher."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from andrea_export.build.build import BuildResult, build_bundle
from andrea_export.core.errors import UsageError
from andrea_export.core.precision import OrtPrecision
from andrea_export.core.progress import Silent
from andrea_export.runtime.open import open_shared
from andrea_export.targets.ort_cpu.derive import check_layers, derive_ort_cpu, linear_kinds
from andrea_export.targets.ort_cpu.files import Int8Decode, files_of
from andrea_export.targets.ort_cpu.options import OrtCpu
from andrea_export.targets.ort_cpu.passes.linear_layers import BLOCK_LINEARS
from andrea_export.targets.recipe import recipe_from_mapping
from andrea_export.weights.load import LoadedModel


def derived(tiny: LoadedModel, tiny_onnx: Path, folder: Path, precision: OrtPrecision, options: OrtCpu) -> Path:
    for name in ("model.onnx", "model.onnx.data"):
        shutil.copy(tiny_onnx.parent / name, folder)
    derive_ort_cpu(folder / "model.onnx", tiny.config, precision=precision, options=options, folder=folder)
    return folder


def operators(file: Path) -> Counter[str]:
    return Counter(node.op_type for node in ir.load(file).graph)


BLOCKWISE = OrtCpu(int8_decode="blockwise")
CASES: list[tuple[OrtPrecision, OrtCpu, dict[str, dict[str, int]]]] = [
    ("fp32", OrtCpu(), {"ort-cpu-fp32.onnx": {"MatMul": 8, "FusedMatMul": 1, "Gather": 2}}),
    ("int8", OrtCpu(), {"ort-cpu-int8.onnx": {"DynamicQuantizeMatMul": 4, "MatMul": 4, "MatMulNBits": 1}}),
    (
        "int8",
        OrtCpu(int8_keep=()),
        {"ort-cpu-int8.onnx": {"DynamicQuantizeMatMul": 8, "MatMulNBits": 1, "ReduceMax": 2}},
    ),
    (
        "int8",
        OrtCpu(int8_scaled_rows=("attn.proj", "blocks.0", "blocks.1.mlp.fc")),  # those in fp32 have nothing to round
        {"ort-cpu-int8.onnx": {"DynamicQuantizeMatMul": 4, "MatMul": 4, "MatMulNBits": 1, "ReduceMax": 2}},
    ),
    (
        "int8",
        replace(OrtCpu(), int8_keep=("mlp.proj", "blocks.0.attn.qkv")),
        {"ort-cpu-int8.onnx": {"DynamicQuantizeMatMul": 5, "MatMul": 3, "MatMulNBits": 1}},
    ),
    (
        "int8",
        replace(BLOCKWISE, int8_keep=("mlp.proj",)),
        {
            "ort-cpu-int8.onnx": {"MatMulNBits": 7, "MatMul": 2},
            "ort-cpu-int8-prefill.onnx": {"DynamicQuantizeMatMul": 4, "MatMul": 1},
        },
    ),
    (
        "int4",
        OrtCpu(),
        {
            "ort-cpu-int4.onnx": {"MatMulNBits": 7, "DynamicQuantizeMatMul": 2},
            "ort-cpu-int4-prefill.onnx": {"DynamicQuantizeMatMul": 5},
        },
    ),
    (
        "int4",
        BLOCKWISE,
        {
            "ort-cpu-int4.onnx": {"MatMulNBits": 9},
            "ort-cpu-int4-prefill.onnx": {"DynamicQuantizeMatMul": 5},
        },
    ),
]


def bits_of(file: Path) -> dict[str, int]:
    """Module path of each block-wise layer → its bits."""
    nodes = [node for node in ir.load(file).graph if node.op_type == "MatMulNBits"]
    return {str(node.name): node.attributes["bits"].as_int() for node in nodes}


def test_a_recipes_sensitive_layers_have_more_bits(tiny: LoadedModel, tiny_onnx: Path, tmp_path: Path) -> None:
    options = replace(BLOCKWISE, int4_keep=("attn.qkv", "blocks.1.mlp.proj"), int4_block=32)
    bits = bits_of(derived(tiny, tiny_onnx, tmp_path, "int4", options) / "ort-cpu-int4.onnx")
    kept = {"blocks.0.attn.qkv", "blocks.1.attn.qkv", "blocks.1.mlp.proj", "head"}
    assert {name for name, count in bits.items() if count == 8} == kept
    assert {count for name, count in bits.items() if name not in kept} == {4}


@pytest.mark.parametrize(
    ("precision", "options"),
    [
        ("int8", OrtCpu()),
        ("int8", BLOCKWISE),
        ("int4", OrtCpu()),
        ("int4", BLOCKWISE),
        ("int4", OrtCpu(int4_keep=())),
        ("int4", OrtCpu(int4_keep=(), int4_block=32)),
    ],
)
def test_rows_of_a_batch_give_what_they_give_alone(
    tiny: LoadedModel, tiny_onnx: Path, tmp_path: Path, precision: OrtPrecision, options: OrtCpu
) -> None:
    folder = derived(tiny, tiny_onnx, tmp_path, precision, options)
    prompts = [(5, 17, 42), (300,), tuple(range(40))]
    with closing(open_shared(folder, files_of(precision, options.int8_decode), tiny.config, 1)) as decoder:
        generation = decoder.begin(prompts, 50)
        together = [generation.logits_BV.copy(), generation.step([1, 2, 3]).copy(), generation.step([4, 5, 6]).copy()]
        for row, prompt in enumerate(prompts):
            generation = decoder.begin([prompt], 50)
            alone = [generation.logits_BV[0].copy()]
            alone += [generation.step([step[row]])[0].copy() for step in ([1, 2, 3], [4, 5, 6])]
            for a, b in zip(alone, together, strict=True):
                assert np.array_equal(a, b[row])


@pytest.mark.parametrize(("precision", "options", "wanted"), CASES)
def test_each_precisions_graphs(
    tiny: LoadedModel,
    tiny_onnx: Path,
    tmp_path: Path,
    precision: OrtPrecision,
    options: OrtCpu,
    wanted: dict[str, dict[str, int]],
) -> None:
    folder = derived(tiny, tiny_onnx, tmp_path, precision, options)
    files = files_of(precision, options.int8_decode)
    assert {path.name for path in folder.iterdir()} == {"model.onnx", "model.onnx.data", *files.all}
    for name, counts in wanted.items():
        onnx.checker.check_model(folder / name)
        found = operators(folder / name)
        kinds = ("MatMul", "FusedMatMul", "Gather", "DynamicQuantizeMatMul", "MatMulNBits")
        assert {kind: found[kind] for kind in counts} == counts
        assert sum(found[kind] for kind in kinds if kind not in counts and kind != "Gather") == 0
        assert found["GroupQueryAttention"] == 2 and found["SkipLayerNormalization"] == 0
    with closing(open_shared(folder, files, tiny.config, 1)) as decoder:
        prompt = (5, 17, 42, 300, 8)
        with torch.inference_mode():
            exact = tiny.model(torch.tensor([prompt]))[0][0, -1].numpy()
        logits = decoder.begin([prompt], 8).logits_BV[0]
        # What 4 bits may cost here; each layer's own error is held to its budget by the validation of a build.
        assert abs(logits - exact).max() < (1e-4 if precision == "fp32" else 0.5 * abs(exact).max())


def test_fp32_stores_no_weight_again(ort_built: BuildResult) -> None:
    names = {
        value.const_value.location
        for value in ir.load(ort_built.bundle / "ort-cpu-fp32.onnx").graph.initializers.values()
        if isinstance(value.const_value, ir.ExternalTensor)
    }
    assert names == {"model.onnx.data"}
    assert (ort_built.bundle / "ort-cpu-fp32.onnx").stat().st_size < 50_000


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_quantised_files_hold_everything_once(ort_built: BuildResult, precision: OrtPrecision) -> None:
    files = files_of(precision, "dynamic")
    spans: dict[str, tuple[int, int]] = {}
    for name in dict.fromkeys((files.decode, files.prefill)):
        for value in ir.load(ort_built.bundle / name).graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor):
                assert tensor.location == files.weights
                assert tensor.offset is not None and tensor.length is not None
                spans[str(value.name)] = (tensor.offset, tensor.length)
    assert spans["token_embed.weight_rows_int8"] == spans["token_embed.weight_block_int8"]
    distinct = sorted(set(spans.values()))
    assert all(first[0] + first[1] <= second[0] for first, second in pairwise(distinct))
    assert "token_embed.weight" not in spans


def test_the_manifest_and_the_report_list_them(ort_built: BuildResult) -> None:
    manifest, report = ort_built.manifest, ort_built.report
    assert manifest.ort_cpu == ("fp32", "int8", "int4")
    for precision in manifest.ort_cpu:
        assert set(files_of(precision, manifest.recipe.ort_cpu.int8_decode).all) <= set(manifest.files)
    candidates = {candidate.name: candidate for candidate in report.candidates}
    for name in ("ort-cpu-fp32", "ort-cpu-int8", "ort-cpu-int4", "ort-cpu-int4-prefill"):
        assert candidates[name].verdict == "pass"
        rows = [row for row in report.layers if row.candidate == name]
        assert len(rows) == (19 if name.endswith("prefill") else 29)
        assert candidates[name].facts["fused_away"] == ["mask"]
    assert candidates["ort-cpu-fp32"].facts["kl_mean"] < 1e-9
    assert candidates["ort-cpu-fp32"].facts["top1"] == 1.0
    assert 0 < candidates["ort-cpu-int8"].facts["kl_mean"] < candidates["ort-cpu-int4"].facts["kl_mean"] < 0.1


def test_a_bundle_with_cpu_graphs_is_built_again_in_its_place(
    checkpoint: Path, cache_dir: Path, tmp_path: Path
) -> None:
    def build(int8_decode: str) -> BuildResult:
        values = {"targets": ["onnx", "ort-cpu"], "precisions": ["int8"], "ort_cpu": {"int8_decode": int8_decode}}
        recipe = recipe_from_mapping(values, where="test")
        return build_bundle(
            tmp_path / "bundle",
            recipe,
            checkpoint=checkpoint,
            force=False,
            cache_dir=cache_dir,
            progress=Silent(),
        )

    first = build("blockwise")
    assert not any(step.reused for step in first.steps)
    names = {candidate.name: candidate.verdict for candidate in first.report.candidates}
    assert names["ort-cpu-int8"] == names["ort-cpu-int8-prefill"] == "pass"
    assert (tmp_path / "bundle" / "ort-cpu-int8-prefill.onnx").exists()
    assert all(step.reused for step in build("blockwise").steps)
    again = build("dynamic")
    assert again.report.verdict == "pass" and not all(step.reused for step in again.steps)
    assert not (tmp_path / "bundle" / "ort-cpu-int8-prefill.onnx").exists()


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
@pytest.mark.parametrize("int8_decode", ["dynamic", "blockwise"])
def test_the_files_of_every_precision(precision: OrtPrecision, int8_decode: Int8Decode) -> None:
    files = files_of(precision, int8_decode)
    two = precision == "int4" or (precision == "int8" and int8_decode == "blockwise")
    assert files.decode == f"ort-cpu-{precision}.onnx"
    assert files.prefill == (f"ort-cpu-{precision}-prefill.onnx" if two else files.decode)
    assert files.rows_independent is (precision == "fp32")


@pytest.mark.parametrize("kept", ["mlp", "blocks", "blocks.0.attn", "blocks.2", "blocks.2.mlp.fc", "ln_f", ""])
def test_layers_to_keep_that_are_none(tiny: LoadedModel, kept: str) -> None:
    with pytest.raises(UsageError, match="int8_keep: the model has no linear layer"):
        linear_kinds(tiny.config, "int8", OrtCpu(int8_keep=(kept,)))
    for key in ("int8_keep", "int8_scaled_rows", "int4_keep"):
        with pytest.raises(UsageError, match=f"{key}: the model has no linear layer"):
            check_layers(tiny.config, (), OrtCpu(**{key: (kept,)}))


@pytest.mark.parametrize("kept", [("blocks.0", "blocks.1"), BLOCK_LINEARS])
def test_a_precision_without_a_layer_of_its_own_is_none(tiny: LoadedModel, kept: tuple[str, ...]) -> None:
    for precision, options in (("int8", OrtCpu(int8_keep=kept)), ("int4", OrtCpu(int4_keep=kept))):
        with pytest.raises(UsageError, match=f"leaves none of the model's 8 linear layers in {precision}") as caught:
            check_layers(tiny.config, [precision], options)
        assert caught.value.hint is not None and f"{precision}_keep = []" in caught.value.hint
