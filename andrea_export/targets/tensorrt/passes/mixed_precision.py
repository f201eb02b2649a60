"""Mixed precision: turns the fp32 graph into a strongly typed one by the rule of ``andrea_export.core.precision``."""

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from andrea_export.core.dtypes import DTYPES, DType
from andrea_export.core.errors import PassError
from andrea_export.core.precision import Precision
from andrea_export.graph.passes.graph_edits import array_of, cast_beside, module_of

_FP32 = ir.DataType.FLOAT
_FLOATS = frozenset(ir.DataType(row.onnx) for row in DTYPES.values() if row.name in ("fp32", "fp16", "bf16"))


class MixedPrecision(ir.passes.InPlacePass):
    """Half modules read and write the half type, all others fp32, with a Cast at each border. Names do not change.

    The half modules' weights are rounded to nearest, ties to even; past and present become the cache's type. With
    fp32 the graph stays as it is.

    Requires: an fp32 graph without casts whose nodes carry their module path. Ensures: every node's float inputs are
    of its module's type, and the logits are fp32. Raises: PassError naming each weight that does not fit the half
    type, or shared between a half and an fp32 module.
    """

    def __init__(self, precision: Precision) -> None:
        super().__init__()
        self.precision = precision
        self.half: DType = DTYPES[precision.compute_dtype]
        self._half = ir.DataType(self.half.onnx)

    def requires(self, model: ir.Model) -> None:
        graph = model.graph
        problems = [f"node '{node.name}' is a Cast" for node in graph if node.op_type == "Cast"]
        produced = (value for node in graph for value in node.outputs)
        for value in (*graph.inputs, *graph.initializers.values(), *produced):
            if value.dtype is None:
                problems.append(f"value '{value.name}' has no type")
            elif value.dtype in _FLOATS - {_FP32}:
                problems.append(f"value '{value.name}' is {value.dtype.name}")
        for node in graph:
            module_of(node)
        if problems:
            raise PassError(f"mixed precision needs a plain fp32 graph: {'; '.join(problems[:8])}")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        if self._half == _FP32:
            return ir.passes.PassResult(model, modified=False)
        graph = model.graph
        self._convert_weights(graph)
        produced = [(node, value) for node in graph for value in node.outputs]
        for value in graph.inputs:
            if value.dtype == _FP32 and any(self._is_half(use.node) for use in value.uses()):
                value.dtype = self._half
        for node, value in produced:
            if value.dtype == _FP32 and self._is_half(node):
                value.dtype = self._half
        for node, value in produced:
            if value.dtype in (self._half, _FP32):
                self._cast_at_border(graph, node, value)
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        problems = []
        for node in model.graph:
            wanted = self._half if self._is_half(node) else _FP32
            problems += [
                f"'{node.name}' reads {value.name} as {value.dtype.name}, expected {wanted.name}"
                for value in node.inputs
                if value is not None and value.dtype in _FLOATS and value.dtype != wanted and node.op_type != "Cast"
            ]
        problems += [
            f"'{value.name}' is not fp32"
            for value in model.graph.outputs
            if value.name == "logits" and value.dtype != _FP32
        ]
        if problems:
            raise PassError(f"mixed precision left wrong types: {'; '.join(problems[:8])}")

    def _is_half(self, node: ir.Node) -> bool:
        return self.precision.module_dtype(module_of(node)) != "fp32"

    def _cast_at_border(self, graph: ir.Graph, producer: ir.Node, value: ir.Value) -> None:
        """One Cast of the value for all its readers of the other type."""
        is_half = value.dtype == self._half
        strangers = [use for use in value.uses() if self._is_half(use.node) != is_half]
        if strangers:
            cast = cast_beside(producer, value, _FP32 if is_half else self._half, f"{value.name}/Cast")
            graph.insert_after(producer, cast)
            for use in strangers:
                use.node.replace_input_with(use.idx, cast.outputs[0])

    def _convert_weights(self, graph: ir.Graph) -> None:
        problems = []
        for name, value in graph.initializers.items():
            readers = {self._is_half(use.node) for use in value.uses()}
            if value.dtype != _FP32 or True not in readers:
                continue
            if False in readers:
                problems.append(f"{name} is read by half and by fp32 modules")
                continue
            weight = array_of(value)
            converted = half_from_fp32(weight, self.half)
            if num_overflown := int(np.count_nonzero(~np.isfinite(converted) & np.isfinite(weight))):
                largest = np.abs(weight).max()
                problems.append(f"{name} ({num_overflown:,} of {weight.size:,} values, largest {largest:.4g})")
                continue
            value.const_value = ir.Tensor(converted, dtype=self._half, name=name)
            value.dtype = self._half
        if problems:
            raise PassError(
                f"{len(problems)} weights cannot be {self.half.name}: {'; '.join(problems[:8])}",
                hint="use fp32, or bf16 for its range",
            )


def half_from_fp32(weight: npt.NDArray[np.float32], half: DType) -> npt.NDArray[np.generic]:
    """The weight rounded to nearest, ties to even; beyond the type's range it is Inf, which the caller must refuse."""
    with np.errstate(over="ignore"):
        return weight.astype(half.numpy)
