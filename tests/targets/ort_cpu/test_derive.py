"""The graphs of each precision: which files, which operators, which bytes are shared, what a recipe may keep higher."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import closing
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
from andrea_export.targets.ort_cpu.files import LIBRARY, files_of
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


CASES: list[tuple[OrtPrecision, OrtCpu, dict[str, int]]] = [
    ("fp32", OrtCpu(), {"MatMul": 8, "FusedMatMul": 1, "Gather": 2, "LayerNormalization": 5, "Gelu": 2}),
    ("int8", OrtCpu(), {"NormLinear8": 3, "NormLinear8Gelu": 2, "Linear8Add": 4, "Embed8": 1, "Gather": 1}),
    (
        "int8",
        OrtCpu(int8_keep=("mlp.proj", "blocks.0.attn.qkv")),
        {"NormLinear8": 2, "NormLinear8Gelu": 2, "Linear8Add": 2, "MatMul": 3, "LayerNormalization": 1},
    ),
    (
        "int4",
        OrtCpu(),
        {"NormLinear8": 3, "NormLinear4Gelu": 2, "Linear4Add": 2, "Linear8Add": 2, "Embed8": 1, "Gather": 1},
    ),
    (
        "int4",
        OrtCpu(int4_keep=("attn.qkv", "blocks.1.mlp.proj"), int4_block=32),
        {"NormLinear8": 3, "NormLinear4Gelu": 2, "Linear4Add": 3, "Linear8Add": 1},
    ),
]


@pytest.mark.parametrize(
    ("precision", "options"),
    [
        ("int8", OrtCpu()),
        ("int8", OrtCpu(int8_keep=("blocks.0",))),
        ("int4", OrtCpu()),
        ("int4", OrtCpu(int4_keep=(), int4_block=32)),
    ],
)
def test_rows_of_a_batch_give_what_they_give_alone(
    tiny: LoadedModel, tiny_onnx: Path, cpu_library: Path, tmp_path: Path, precision: OrtPrecision, options: OrtCpu
) -> None:
    folder = derived(tiny, tiny_onnx, tmp_path, precision, options)
    prompts = [(5, 17, 42), (300,), tuple(range(40))]
    opened = open_shared(folder, files_of(precision), tiny.config, 1, library=cpu_library)
    with closing(opened) as decoder:
        generation = decoder.begin(prompts, 50)
        together = [generation.logits_BV.copy(), generation.step([1, 2, 3]).copy(), generation.step([4, 5, 6]).copy()]
        for row, prompt in enumerate(prompts):
            generation = decoder.begin([prompt], 50)
            alone = [generation.logits_BV[0].copy()]
            alone += [generation.step([step[row]])[0].copy() for step in ([1, 2, 3], [4, 5, 6])]
            for a, b in zip(alone, together, strict=True):
                assert np.array_equal(a, b[row])


@pytest.mark.parametrize(("precision", "options", "counts"), CASES)
def test_each_precisions_graph(
    tiny: LoadedModel,
    tiny_onnx: Path,
    cpu_library: Path,
    tmp_path: Path,
    precision: OrtPrecision,
    options: OrtCpu,
    counts: dict[str, int],
) -> None:
    folder = derived(tiny, tiny_onnx, tmp_path, precision, options)
    files = files_of(precision)
    assert {path.name for path in folder.iterdir()} == {"model.onnx", "model.onnx.data", *files.all}
    onnx.checker.check_model(folder / files.graph)
    found = operators(folder / files.graph)
    assert {kind: found[kind] for kind in counts} == counts
    assert found["GroupQueryAttention"] == 2 and found["SkipLayerNormalization"] == 0
    with closing(open_shared(folder, files, tiny.config, 1, library=cpu_library)) as decoder:
        assert not decoder.passed_over
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
    files = files_of(precision)
    spans: dict[str, tuple[int, int]] = {}
    for value in ir.load(ort_built.bundle / files.graph).graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            assert tensor.location == files.weights
            assert tensor.offset is not None and tensor.length is not None
            spans[str(value.name)] = (tensor.offset, tensor.length)
    assert spans["token_embed.weight_packed_int8"][1] == -(-321 // 16) * 16 * 64
    ordered = sorted(spans.values())
    assert all(first[0] + first[1] <= second[0] for first, second in pairwise(ordered))
    assert "token_embed.weight" not in spans


def test_the_manifest_and_the_report_list_them(ort_built: BuildResult) -> None:
    manifest, report = ort_built.manifest, ort_built.report
    assert manifest.ort_cpu == ("fp32", "int8", "int4")
    for precision in manifest.ort_cpu:
        assert set(files_of(precision).all) <= set(manifest.files)
    assert manifest.cpu_library is not None and LIBRARY in manifest.files
    candidates = {candidate.name: candidate for candidate in report.candidates}
    inside = [f"blocks.{i}.{name}" for i in range(2) for name in ("ln_1", "attn.proj", "ln_2", "mlp.fc", "mlp.proj")]
    for name in ("ort-cpu-fp32", "ort-cpu-int8", "ort-cpu-int4"):
        assert candidates[name].verdict == "pass"
        rows = [row for row in report.layers if row.candidate == name]
        gone = ["mask"] if name == "ort-cpu-fp32" else ["mask", *inside, "ln_f"]
        assert candidates[name].facts["fused_away"] == gone and len(rows) == 30 - len(gone)
    assert candidates["ort-cpu-fp32"].facts["kl_mean"] < 1e-9
    assert candidates["ort-cpu-fp32"].facts["top1"] == 1.0
    assert 0 < candidates["ort-cpu-int8"].facts["kl_mean"] < candidates["ort-cpu-int4"].facts["kl_mean"] < 0.1


def test_a_bundle_with_cpu_graphs_is_built_again_in_its_place(
    checkpoint: Path, cache_dir: Path, tmp_path: Path
) -> None:
    def build(kept: list[str]) -> BuildResult:
        values = {"targets": ["onnx", "ort-cpu"], "precisions": ["int8"], "ort_cpu": {"int8_keep": kept}}
        recipe = recipe_from_mapping(values, where="test")
        return build_bundle(
            tmp_path / "bundle",
            recipe,
            checkpoint=checkpoint,
            force=False,
            cache_dir=cache_dir,
            progress=Silent(),
        )

    first = build([])
    assert not any(step.reused for step in first.steps)
    assert all(step.reused for step in build([]).steps)
    again = build(["blocks.0"])
    assert again.report.verdict == "pass"
    made = [step.name for step in again.steps if not step.reused]
    assert "ort-cpu int8" in made and not {"onnx", "CPU operators"} & set(made)


@pytest.mark.parametrize("kept", ["mlp", "blocks", "blocks.0.attn", "blocks.2", "blocks.2.mlp.fc", "ln_f", ""])
def test_layers_to_keep_that_are_none(tiny: LoadedModel, kept: str) -> None:
    with pytest.raises(UsageError, match="int8_keep: the model has no linear layer"):
        linear_kinds(tiny.config, "int8", OrtCpu(int8_keep=(kept,)))
    for key in ("int8_keep", "int4_keep"):
        with pytest.raises(UsageError, match=f"{key}: the model has no linear layer"):
            check_layers(tiny.config, (), OrtCpu(**{key: (kept,)}))


@pytest.mark.parametrize("kept", [("blocks.0", "blocks.1"), BLOCK_LINEARS])
def test_a_precision_without_a_layer_of_its_own_is_none(tiny: LoadedModel, kept: tuple[str, ...]) -> None:
    for precision, options in (("int8", OrtCpu(int8_keep=kept)), ("int4", OrtCpu(int4_keep=kept))):
        with pytest.raises(UsageError, match=f"leaves none of the model's 8 linear layers in {precision}") as caught:
            check_layers(tiny.config, [precision], options)
        assert caught.value.hint is not None and f"{precision}_keep = []" in caught.value.hint
