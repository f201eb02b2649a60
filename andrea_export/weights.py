"""Weights as bytes: one hash a parameter, so that an ONNX file's weights can be held against the checkpoint's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea_export.errors import ExportError
from andrea_export.report import Check
from andrea_model.config import AndreaConfig
from andrea_model.model import Andrea, build_model


def hashes_from_model(model: Andrea) -> dict[str, str]:
    """Parameter name → sha256 of its little-endian fp32 bytes."""
    return {name: _sha256(parameter.detach().numpy()) for name, parameter in model.named_parameters()}


def hashes_from_onnx(model: Path) -> dict[str, str]:
    """The same, read from the initializers of a canonical ONNX file (memory-mapped)."""
    return {name: _sha256(array) for name, array in _initializers(model)}


def model_from_onnx(model: Path, config: AndreaConfig) -> Andrea:
    """The torch model with the weights that are in a canonical ONNX file. Raises ExportError if they do not fit."""
    import torch

    reference = build_model(config)
    found = dict(_initializers(model))
    for name, parameter in reference.named_parameters():
        if name not in found or found[name].shape != tuple(parameter.shape):
            raise ExportError(f"{model} has no parameter {name} of shape {list(parameter.shape)}")
        parameter.copy_(torch.from_numpy(np.array(found[name])))
    return reference


def check_weights(model: Path, expected: Mapping[str, str]) -> Check:
    """Whether every parameter in the ONNX file is, bit for bit, the one whose hash is given."""
    found = hashes_from_onnx(model)
    wrong = [name for name, sha256 in expected.items() if found.get(name) != sha256]
    if not wrong:
        return Check(
            name="weights",
            verdict="pass",
            detail=f"all {len(expected)} parameters in {model.name} are bit for bit the model's",
        )
    listed = ", ".join(f"{name} ({'changed' if name in found else 'missing'})" for name in wrong[:8])
    more = f" and {len(wrong) - 8} more" if len(wrong) > 8 else ""
    return Check(
        name="weights",
        verdict="fail",
        detail=f"{len(wrong)} of {len(expected)} parameters in {model.name} are not the model's: {listed}{more}",
        layer=wrong[0].rpartition(".")[0],
    )


def _initializers(model: Path) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    import onnx_ir as ir

    for name, value in ir.load(model).graph.initializers.items():
        if not name.startswith("constant.") and value.const_value is not None:
            yield name, value.const_value.numpy()


def _sha256(array: npt.NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array, dtype="<f4").data).hexdigest()
