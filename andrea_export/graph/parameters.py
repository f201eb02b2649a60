"""Weights as bytes: one hash a parameter, so that an ONNX file's weights can be held against the checkpoint's."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch

from andrea_export.core.errors import ExportError, first_line
from andrea_export.graph.canonical.metadata import load_graph
from andrea_model.config import AndreaConfig
from andrea_model.model import Andrea, build_model, parameter_shapes


def hashes_from_model(model: Andrea) -> dict[str, str]:
    """Parameter name → sha256 of its little-endian fp32 bytes."""
    return {name: _sha256(parameter.detach().numpy()) for name, parameter in model.named_parameters()}


def hashes_from_onnx(model: Path) -> dict[str, str]:
    """The same, read from the initializers of a canonical ONNX file (memory-mapped)."""
    return {name: _sha256(array) for name, array in _initializers(model)}


def model_from_onnx(model: Path, config: AndreaConfig) -> Andrea:
    """The torch model with the weights that are in a canonical ONNX file. Raises ExportError if they do not fit."""
    reference = build_model(config)
    found = dict(_initializers(model))
    for name, parameter in reference.named_parameters():
        if name not in found or found[name].shape != tuple(parameter.shape):
            raise ExportError(f"{model} has no parameter {name} of shape {list(parameter.shape)}")
        parameter.copy_(torch.from_numpy(np.array(found[name])))
    return reference


def problems_of_parameters(model: Path, expected: Mapping[str, str], config: AndreaConfig) -> dict[str, str]:
    """Parameter name → what is wrong with it in an ONNX file: name, fp32, shape, and bit for bit the values.

    ``expected`` is a hash for every parameter. In the model's own order; what is not one of its parameters comes last.
    Raises: ExportError for a file that cannot be read.
    """
    shapes = parameter_shapes(config)
    found: dict[str, str] = {}
    problems: dict[str, str] = {}
    for name, array in _initializers(model):
        found[name] = _sha256(array)
        if name not in expected or name not in shapes:
            problems[name] = "is not a parameter of the model"
        elif array.dtype != np.float32 or array.shape != shapes[name]:
            problems[name] = f"{array.dtype} {list(array.shape)}, expected float32 {list(shapes[name])}"
        elif found[name] != expected[name]:
            problems[name] = "changed"
    problems.update({name: "missing" for name in shapes if name not in found})
    problems.update({name: "has no hash to be held against" for name in shapes if name not in expected})
    order = [name for name in shapes if name in problems] + [name for name in problems if name not in shapes]
    return {name: problems[name] for name in order}


def _initializers(model: Path) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Every parameter of a canonical file. Raises ExportError for a file, or a weights file, that cannot be read."""
    load_graph(model)  # says what is wrong with a file that holds no graph
    try:
        for name, value in ir.load(model).graph.initializers.items():
            if not name.startswith("constant.") and value.const_value is not None:
                yield name, value.const_value.numpy()
    except (OSError, ValueError, TypeError) as error:  # weights that are missing, short or without a type
        raise ExportError(f"the weights of {model.name} cannot be read: {first_line(error)}") from None


def _sha256(array: npt.NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array, dtype="<f4").data).hexdigest()
