"""The host library's wrapper."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from andrea_export.core.errors import PluginError
from andrea_export.operators.build import HostGelu
from support.plugin_builds import compile_library


def test_shape_and_dtype_are_kept(host_gelu: HostGelu) -> None:
    bits = np.arange(24, dtype=np.uint16).reshape(2, 3, 4)
    for array, storage in (
        (np.linspace(-3, 3, 24, dtype=np.float32).reshape(2, 3, 4), "fp32"),
        (np.linspace(-3, 3, 24).astype(np.float16).reshape(2, 3, 4), "fp16"),
        (bits.view(ml_dtypes.bfloat16), "bf16"),
        (bits, "bf16"),
        (np.float32(1.5).reshape(()), "fp32"),
        (np.zeros((0, 5), np.float32), "fp32"),
    ):
        result = host_gelu.apply(array, storage)
        assert result.shape == array.shape
        assert result.dtype == array.dtype


def test_strides_are_followed(host_gelu: HostGelu) -> None:
    x = np.linspace(-3, 3, 60, dtype=np.float32).reshape(6, 10)
    whole = host_gelu.apply(x, "fp32")
    assert np.array_equal(host_gelu.apply(x[::2, ::-3], "fp32"), whole[::2, ::-3])
    assert np.array_equal(host_gelu.apply(x.T, "fp32"), whole.T)


def test_bits_and_bfloat16_are_the_same(host_gelu: HostGelu) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    assert np.array_equal(
        host_gelu.apply(bits, "bf16"), host_gelu.apply(bits.view(ml_dtypes.bfloat16), "bf16").view(np.uint16)
    )


def test_a_wrong_dtype_or_storage_is_refused(host_gelu: HostGelu) -> None:
    with pytest.raises(PluginError, match="expected an array of float16, found float32"):
        host_gelu.apply(np.zeros(3, np.float32), "fp16")
    with pytest.raises(PluginError, match="storage type 'fp8'"):
        host_gelu.apply(np.zeros(3, np.float32), "fp8")
    with pytest.raises(PluginError, match="no modelled error"):
        host_gelu.apply(np.zeros(3, np.float32), "fp32", exp2_relative_error=1e-7)


def test_a_host_library_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="cannot be loaded"):
        HostGelu(compile_library(tmp_path, "int nothing;"))
    with pytest.raises(PluginError, match="cannot be loaded"):
        HostGelu(tmp_path / "none.so")
