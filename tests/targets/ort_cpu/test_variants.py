"""Variants of the architecture as graphs for the CPU: each equals torch, quantised the same way."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from andrea_export.core.precision import OrtPrecision
from andrea_export.runtime.open import open_shared
from andrea_export.targets.ort_cpu.derive import derive_ort_cpu, linear_kinds
from andrea_export.targets.ort_cpu.files import files_of
from andrea_export.targets.ort_cpu.options import OrtCpu
from andrea_export.targets.ort_cpu.torch_quantized import quantized_part
from andrea_export.weights.load import LoadedModel


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_every_variant_equals_torch_rounding_as_it_does(
    variant: LoadedModel, variant_onnx: Path, cpu_library: Path, tmp_path: Path, precision: OrtPrecision
) -> None:
    folder = Path(shutil.copytree(variant_onnx.parent, tmp_path / "graphs"))
    derive_ort_cpu(folder / "model.onnx", variant.config, precision=precision, options=OrtCpu(), folder=folder)
    model = variant.model
    if precision != "fp32":
        kinds = linear_kinds(variant.config, precision, OrtCpu())
        model = quantized_part(model, "", kinds, int4_block=OrtCpu().int4_block)
    prompt = [5, 17, 42, 3, 8]
    with torch.inference_mode():
        wanted = model(torch.tensor([prompt]))[0][0, -1].numpy()
        exact = variant.model(torch.tensor([prompt]))[0][0, -1].numpy()
    opened = open_shared(folder, files_of(precision), variant.config, 1, library=cpu_library)
    with closing(opened) as decoder:
        found = decoder.begin([prompt], 8).logits_BV[0]
    rounding = np.abs(wanted - exact).max()
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(exact).max() + 0.1 * rounding
