"""A second operator is one folder: its row and its maths. Build, library and exporter find it by themselves."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import numpy as np
import pytest

from andrea_export.operators.creators import check_library, read_creators
from andrea_export.operators.sources import custom_ops, plugin_source_files
from support.plugin_builds import PLUGIN_ON_CPU, build_programs

ROW = {
    "op_type": "AndreaNegative",
    "domain": "com.andrea",
    "opset_version": 1,
    "plugin_namespace": "com.andrea",
    "plugin_version": "3",
    "attributes": [],
    "storage_types": ["fp32"],
    "function_body": "y = Neg (x)",
}
KERNEL_H = """#pragma once
#include "common/cuda_api.h"
#include "common/storage.h"

namespace andrea::negative {
cudaError_t launch_negative(StorageType type, void const* input, void* output, std::int64_t count,
                          DeviceLimits const& limits, cudaStream_t stream) noexcept;
}
"""
KERNEL_CU = """#include "negative/kernel.h"

#include "common/elementwise_kernel.cuh"

namespace andrea::negative {
namespace {
template <typename Storage>
struct Maths {
  static ANDREA_HOST_DEVICE float apply(float x) { return -x; }
};
}  // namespace

cudaError_t launch_negative(StorageType type, void const* input, void* output, std::int64_t count,
                          DeviceLimits const& limits, cudaStream_t stream) noexcept
{
  return launch_elementwise<Maths, Fp32>(type, input, output, count, limits, stream);
}
}  // namespace andrea::negative
"""


@pytest.fixture
def with_negative(sources: Path) -> Path:
    """A copy of the plugin's sources with the operator's folder added; no other file of it is touched."""
    folder = sources / "negative"
    folder.mkdir()
    (folder / "op.json").write_text(json.dumps(ROW))
    (folder / "kernel.h").write_text(KERNEL_H)
    (folder / "kernel.cu").write_text(KERNEL_CU)
    return sources


def test_the_exporter_finds_the_row_and_the_build_the_files(with_negative: Path) -> None:
    rows = custom_ops()
    assert list(rows) == ["gelu", "negative"]
    assert rows["negative"].qualified_name == "com.andrea::AndreaNegative"
    assert rows["negative"].storage_types == ("fp32",)
    files = {path.relative_to(with_negative).as_posix() for path in plugin_source_files()}
    assert {"negative/op.json", "negative/kernel.h", "negative/kernel.cu"} <= files


def test_the_library_has_both_operators_and_computes_the_second(with_negative: Path, tmp_path: Path) -> None:
    folder = build_programs(with_negative, tmp_path / "build", "andrea_plugins_cpu", "andrea_harness")
    library = folder / PLUGIN_ON_CPU
    assert [creator.name for creator in read_creators(library)] == ["AndreaGelu", "AndreaNegative"]
    for op in custom_ops().values():
        assert check_library(library, op).version == op.plugin_version

    harness = ctypes.CDLL(str(folder / "libandrea_harness.so"))
    harness.andrea_harness_open.restype = ctypes.c_void_p
    reason = ctypes.create_string_buffer(512)
    session = ctypes.c_void_p(
        harness.andrea_harness_open(str(library).encode(), b"AndreaNegative", reason, ctypes.c_int64(len(reason)))
    )
    assert session.value is not None, reason.value
    x = np.linspace(-3, 3, 5003, dtype=np.float32)
    y = np.empty_like(x)
    addresses = [ctypes.c_void_p(array.ctypes.data) for array in (x, y)]
    extents = (ctypes.c_int64 * 1)(x.size)
    fp32, fp16 = 0, 1  # TensorRT's DataType
    assert harness.andrea_harness_run(session, fp32, extents, 1, *addresses, None) == 0
    assert np.array_equal(y, -x)
    assert harness.andrea_harness_run(session, fp16, extents, 1, *addresses, None) != 0, "the row names fp32 alone"
    harness.andrea_harness_close(session)
