"""Accuracy on the device: all inputs of the 16-bit types; fp32 bit for bit against the host, over all 2^32 patterns."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from os import cpu_count

import ml_dtypes
import numpy as np
import torch
from gelu_truth import BF16, FP16, FP32, Format, correctly_rounded, errors_in_ulp, gelu_truth
from gpu_parts import STORAGE_TYPES, Built, PartResult, PluginOnTensors
from numpy.typing import NDArray

from andrea_export.operators.build import HostGelu, build_host_library

_CHUNK = 1 << 25
# Every 4096th pattern, from another offset in each chunk: what a rehearsal on the CPU checks instead of all.
_REHEARSAL_STEP = 4096


def run(built: Built, result: PartResult) -> None:
    """One row a type."""
    plugin = PluginOnTensors(built)
    host = build_host_library(built.cache)
    try:
        for storage, numpy_type, form in (
            ("fp16", np.dtype(np.float16), FP16),
            ("bf16", np.dtype(ml_dtypes.bfloat16), BF16),
        ):
            result.row(_sixteen_bit(result, plugin, host, storage, numpy_type, form, built.device))
        result.row(_fp32_sweep(result, plugin, built.device))
        result.row(_fp32_bits(result, plugin, host, built.device))
    finally:
        plugin.close()


def _sixteen_bit(
    result: PartResult,
    plugin: PluginOnTensors,
    host: HostGelu,
    storage: str,
    numpy_type: np.dtype[np.generic],
    form: Format,
    device: str,
) -> dict[str, object]:
    bits = np.arange(65536, dtype=np.uint16)
    given = torch.from_numpy(bits.view(np.int16)).view(STORAGE_TYPES[storage]).to(device)

    def numpy_from(tensor: torch.Tensor) -> NDArray[np.generic]:
        return tensor.view(torch.int16).cpu().numpy().view(numpy_type)

    ours = numpy_from(plugin(given))
    theirs = numpy_from(torch.nn.functional.gelu(given, approximate="tanh"))
    with np.errstate(invalid="ignore"):
        x = bits.view(numpy_type).astype(np.float64)
        nan_kept = np.array_equal(np.isnan(ours.astype(np.float64)), np.isnan(x))
    finite = np.isfinite(x)
    truth = gelu_truth(x[finite])
    nearest = correctly_rounded(truth, form)
    steps = errors_in_ulp(ours[finite], nearest, form)
    our_errors = errors_in_ulp(ours[finite], truth, form)
    their_errors = errors_in_ulp(theirs[finite], truth, form)
    result.expect(steps.max() <= 1, f"{storage}: {steps.max()} ulp from the correctly rounded value")
    result.expect(nan_kept, f"{storage}: NaN in is not NaN out, or the reverse")
    infinities = ours[np.isinf(x)].astype(np.float64)
    result.expect(
        infinities.tolist() == [np.inf, 0.0] and np.signbit(infinities).tolist() == [False, True],
        f"{storage}: infinities give {infinities.tolist()}, expected inf and -0",
    )
    modelled = host.apply(bits.view(numpy_type), storage)
    return {
        "type": storage,
        "inputs": f"all {int(finite.sum())} finite",
        "exactly rounded": f"{np.mean(steps == 0):.4%}",
        "largest error, ulp": float(our_errors.max()),
        "torch: exactly rounded": f"{np.mean(errors_in_ulp(theirs[finite], nearest, form) == 0):.4%}",
        "torch: largest error, ulp": float(their_errors.max()),
        "inputs where torch is nearer": int(np.count_nonzero(our_errors > their_errors)),
        "differs from the host's model at": int(np.count_nonzero(modelled.view(np.uint16) != ours.view(np.uint16))),
    }


def _fp32_sweep(result: PartResult, plugin: PluginOnTensors, device: str) -> dict[str, object]:
    x = np.linspace(-12, 12, 4_000_001).astype(np.float32)
    given = torch.from_numpy(x).to(device)
    truth = gelu_truth(x)
    ours = errors_in_ulp(plugin(given).cpu().numpy(), truth, FP32)
    theirs = errors_in_ulp(torch.nn.functional.gelu(given, approximate="tanh").cpu().numpy(), truth, FP32)
    result.expect(ours.max() <= 4, f"fp32: {ours.max():.3f} ulp over [-12, 12], expected at most 4")
    return {
        "type": "fp32",
        "inputs": f"{x.size} over [-12, 12]",
        "largest error, ulp": float(ours.max()),
        "torch: largest error, ulp": float(theirs.max()),
    }


def _fp32_bits(result: PartResult, plugin: PluginOnTensors, host: HostGelu, device: str) -> dict[str, object]:
    step = 1 if device == "cuda" else _REHEARSAL_STEP
    num_threads = cpu_count() or 1
    offsets = np.arange(0, _CHUNK, step, dtype=np.uint32)
    differing, compared = 0, 0
    with ThreadPoolExecutor(num_threads) as pool:
        for chunk in range((1 << 32) // _CHUNK):
            x = (offsets + np.uint32(chunk * _CHUNK + chunk % step)).view(np.float32)
            given = torch.from_numpy(x).to(device)
            parts = pool.map(lambda part: host.apply(part, "fp32"), np.array_split(x, num_threads))
            expected = torch.from_numpy(np.concatenate(list(parts))).to(device)
            ours = plugin(given)
            same = (ours.view(torch.int32) == expected.view(torch.int32)) | (ours.isnan() & expected.isnan())
            differing += int((~same).sum().item())
            compared += x.size
    result.expect(differing == 0, f"fp32: {differing} of {compared} results are not the host's bits")
    return {"type": "fp32", "inputs": f"{compared} bit patterns", "differs from the host's model at": differing}
