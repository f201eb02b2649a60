"""THE dtype table: one row a type, one column a library. Every conversion between libraries looks here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx


@dataclass(frozen=True, slots=True, kw_only=True)
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


_TP = onnx.TensorProto
DTYPES: dict[str, DType] = {
    row.name: row
    for row in (
        DType(name="fp64", numpy=np.dtype(np.float64), onnx=_TP.DOUBLE, torch="float64", tensorrt="", unit_roundoff=2.0**-53),
        DType(name="fp32", numpy=np.dtype(np.float32), onnx=_TP.FLOAT, torch="float32", tensorrt="FLOAT", unit_roundoff=2.0**-24),
        DType(name="fp16", numpy=np.dtype(np.float16), onnx=_TP.FLOAT16, torch="float16", tensorrt="HALF", unit_roundoff=2.0**-11),
        DType(name="bf16", numpy=np.dtype(ml_dtypes.bfloat16), onnx=_TP.BFLOAT16, torch="bfloat16", tensorrt="BF16", unit_roundoff=2.0**-8),
        DType(name="int64", numpy=np.dtype(np.int64), onnx=_TP.INT64, torch="int64", tensorrt="INT64", unit_roundoff=0.0),
        DType(name="bool", numpy=np.dtype(np.bool_), onnx=_TP.BOOL, torch="bool", tensorrt="BOOL", unit_roundoff=0.0),
    )
}  # fmt: skip


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
