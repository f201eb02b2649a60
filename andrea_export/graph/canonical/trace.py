"""The graph of one block's model, as ``torch.onnx.export`` traces it."""

import importlib.metadata
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import onnx_ir as ir
import torch
from onnxscript.optimizer import optimize_ir

from andrea_export.core.dtypes import DTYPES
from andrea_export.core.errors import ExportError, first_line
from andrea_export.core.names import graph_inputs, graph_outputs
from andrea_export.graph.canonical import OPSET
from andrea_export.operators.sources import andrea_gelu
from andrea_model.config import AndreaConfig
from andrea_model.model import Andrea, Mlp, build_model

# Sizes that differ from one another and from 1: no dimension is mistaken for a constant or for another one.
_SIZES = {"batch": 2, "sequence": 3, "past": 4, "total": 7}


def trace_one_block(config: AndreaConfig) -> ir.Model:
    """The graph of a one-block model, its GELU the custom operator, its weights random. Raises: ExportError."""
    one_block = replace(config, n_layer=1)
    inputs = graph_inputs(one_block)
    dims = {name: torch.export.Dim(name) for name in _SIZES}
    examples = tuple(  # the trace depends on nothing of them but type and number of dimensions
        torch.zeros(
            [_SIZES[dim] if isinstance(dim, str) else dim for dim in spec.dims],
            dtype=getattr(torch, DTYPES[spec.dtype].torch),
        )
        for spec in inputs
    )
    try:
        with _quiet_exporter():
            program = torch.onnx.export(
                _FlatInterface(_distinct_weights(one_block)),
                examples,
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=tuple(
                    {axis: dims[dim] for axis, dim in enumerate(spec.dims) if isinstance(dim, str)} for spec in inputs
                ),
                input_names=[spec.name for spec in inputs],
                output_names=[spec.name for spec in graph_outputs(one_block)],
                optimize=False,
                verbose=False,
            )
            assert program is not None
            optimize_ir(program.model, should_fold=_folds_no_weight)
    except (MemoryError, OSError, ImportError):
        raise
    except Exception as error:  # the exporter's own errors have no common base
        causes = list(_causes(error))
        if any(isinstance(cause, KeyboardInterrupt) for cause in causes):  # it makes one of Ctrl-C, too
            raise KeyboardInterrupt from error
        packages = ("torch", "onnxscript", "onnx-ir")
        versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
        raise ExportError(
            f"torch.onnx.export failed: {first_line(causes[-1])}",
            hint=f"releases that do not fit each other? {versions}",
        ) from error
    return program.model


class _SymbolicGelu(torch.nn.Module):
    """The GELU as one node of the custom operator, with the attributes that name the plugin."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        op = andrea_gelu()
        return torch.onnx.ops.symbolic(
            op.qualified_name,
            (x,),
            attrs={"plugin_namespace": op.plugin_namespace, "plugin_version": op.plugin_version},
            dtype=x.dtype,
            shape=x.shape,
            version=op.opset_version,
        )


class _FlatInterface(torch.nn.Module):
    """The model with its one block's cache as plain arguments and results."""

    def __init__(self, model: Andrea) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, past_key: Any, past_value: Any) -> Any:
        logits, present = self.model(input_ids, attention_mask, position_ids, [(past_key, past_value)])
        return (logits, *present[0])


def _distinct_weights(config: AndreaConfig) -> Andrea:
    """The model to trace. The exporter merges equal initializers, so no two of its parameters are equal."""
    model = build_model(config)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.normal_(generator=generator)
    for module in list(model.modules()):
        if isinstance(module, Mlp):
            module.register_module("gelu", _SymbolicGelu())
    return model


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silences the exporter, which reports each torchvision operator it cannot register; this model has none."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    try:
        log.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception, what it was raised from, and so on to the first one."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        yield cause
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__


def _folds_no_weight(node: ir.Node) -> bool | None:
    """False for an operation on a weight, None (the optimizer decides) for any other.

    The optimizer computes operations on constants once and for all. On shapes and axes it may; on a small model's
    weights it must not, since the traced weights are not the model's: it would fold the head's transposed embedding.
    """
    weights = (value for value in node.inputs if value is not None and value.is_initializer())
    return False if any(value.dtype is not None and value.dtype.is_floating_point() for value in weights) else None
