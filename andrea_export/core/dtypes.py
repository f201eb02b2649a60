"""THE dtype table: one row a type, one column a library. Every conversion between libraries looks here."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx


@dataclass(frozen=True, slots=True)
class DType:
    """One element type. ``unit_roundoff`` is the largest relative error of rounding to it (0 where it is exact)."""

    name: str
    numpy: np.dtype[Any]
    onnx: int
    torch: str
    tensorrt: str
    unit_roundoff: float

    @property
    def num_bytes(self) -> int:
        """Storage size of one element."""
        return self.numpy.itemsize


_ONNX = onnx.TensorProto
DTYPES: dict[str, DType] = {
    row.name: row
    for row in (
        DType("fp64", np.dtype(np.float64), _ONNX.DOUBLE, "float64", "", 2.0**-53),
        DType("fp32", np.dtype(np.float32), _ONNX.FLOAT, "float32", "FLOAT", 2.0**-24),
        DType("fp16", np.dtype(np.float16), _ONNX.FLOAT16, "float16", "HALF", 2.0**-11),
        DType("bf16", np.dtype(ml_dtypes.bfloat16), _ONNX.BFLOAT16, "bfloat16", "BF16", 2.0**-8),
        DType("int64", np.dtype(np.int64), _ONNX.INT64, "int64", "INT64", 0.0),
        DType("bool", np.dtype(np.bool_), _ONNX.BOOL, "bool", "BOOL", 0.0),
    )
}


def dtype_from_onnx(elem_type: int) -> DType:
    """The row of an ONNX ``TensorProto.DataType``. Raises KeyError for a type this project never uses."""
    for row in DTYPES.values():
        if row.onnx == elem_type:
            return row
    raise KeyError(f"ONNX element type {onnx.TensorProto.DataType.Name(elem_type)} is not in the dtype table")


def dtype_from_numpy(dtype: np.dtype[Any]) -> DType:
    """The row of a numpy dtype. Raises KeyError for a type this project never uses."""
    for row in DTYPES.values():
        if row.numpy == dtype:
            return row
    raise KeyError(f"numpy dtype {dtype} is not in the dtype table")
