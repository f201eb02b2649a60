"""The plugin's own maths, compiled for the host, on the GELU inputs that really occur in each layer.

It is the same header the CUDA kernel is compiled from, so this is as much of the plugin's arithmetic as can be proven
without a GPU: storage type in, fp32 arithmetic, storage type out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea_export.comparison import Reference
from andrea_export.dtypes import DTYPES
from andrea_export.errors import BackendUnavailable, PluginError
from andrea_export.judge import budget_of, verdict_of
from andrea_export.metrics import ErrorSums
from andrea_export.operators import andrea_gelu
from andrea_export.plugins import build_host_library
from andrea_export.report import Candidate, LayerRow


def gelu_tanh(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """x · 0.5 · (1 + tanh(u)), u = sqrt(2/π)·(x + 0.044715·x³), in float64.

    Computed as x / (1 + exp(-2u)), the same function, which keeps its relative accuracy where 1 + tanh(u) cancels.
    """
    exponent = np.clip(-2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3), None, 700.0)  # exp(710) overflows
    return np.asarray(x / (1.0 + np.exp(exponent)))


def plugin_maths_rows(
    reference: Reference, layers: Sequence[str], cache_dir: Path
) -> Iterator[tuple[Candidate, tuple[LayerRow, ...]]]:
    """One candidate a storage type, ``plugin-maths-fp16`` and so on, with one row a GELU."""
    storage_types = andrea_gelu().storage_types
    try:
        host = build_host_library(cache_dir)
    except (BackendUnavailable, PluginError) as error:
        for storage in storage_types:
            yield (
                Candidate(
                    name=f"plugin-maths-{storage}",
                    verdict="not-measured",
                    reason=str(error),
                    precision=storage,
                ),
                (),
            )
        return
    for storage in storage_types:
        name = f"plugin-maths-{storage}"
        rows = tuple(_row(name, layer, reference, storage, host) for layer in layers)
        failed = [row.name for row in rows if row.verdict == "fail"]
        yield (
            Candidate(
                name=name,
                verdict="fail" if failed else "pass",
                reason=f"{len(failed)} of {len(rows)} GELUs out of budget" if failed else "",
                precision=storage,
                first_failure=failed[0] if failed else None,
            ),
            rows,
        )


def _row(name: str, layer: str, reference: Reference, storage: str, host: Any) -> LayerRow:
    """Both errors against float64 on the same rounded inputs: the plugin's, and torch's own GELU's in this type."""
    plugin_error, torch_error = ErrorSums(), ErrorSums()
    for truth in reference.truths:
        x = truth[layer.removesuffix("gelu") + "fc"].astype(DTYPES[storage].numpy)
        expected = gelu_tanh(x.astype(np.float64))
        plugin_error.add(expected, host.apply(x, storage))
        torch_error.add(expected, _torch_gelu(x, storage))
    budget = budget_of(torch_error, storage)
    return LayerRow(
        name=layer,
        candidate=name,
        verdict=verdict_of(plugin_error, budget),
        metrics=plugin_error.as_metrics(),
        budget=budget,
    )


def _torch_gelu(x: npt.NDArray[Any], storage: str) -> npt.NDArray[Any]:
    import torch
    import torch.nn.functional as F

    tensor = torch.from_numpy(x.astype(np.float32)).to(getattr(torch, DTYPES[storage].torch))
    return F.gelu(tensor, approximate="tanh").to(torch.float32).numpy()
