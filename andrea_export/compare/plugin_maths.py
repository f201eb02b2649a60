"""The plugin's own maths, compiled for the host, on the GELU inputs that really occur in each layer.

It is the same header the CUDA kernel is compiled from, so this is as much of the plugin's arithmetic as can be proven
without a GPU: storage type in, fp32 arithmetic, storage type out.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from andrea_export.compare.runs import ByCase
from andrea_export.core.dtypes import DTYPES
from andrea_export.core.errors import BackendUnavailable, PluginError
from andrea_export.core.names import Segment, gelu_layers
from andrea_export.judge.budget import basis_of, budget_of, failures_of
from andrea_export.operators.build import build_host_library
from andrea_export.operators.sources import andrea_gelu
from andrea_export.report.file import PLUGIN_MATHS
from andrea_export.report.metrics import ErrorSums, LayerErrors
from andrea_export.report.schema import Candidate, LayerRow, Verdict
from andrea_model.config import AndreaConfig


def gelu_tanh(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """x · 0.5 · (1 + tanh(u)), u = sqrt(2/π)·(x + 0.044715·x³), in float64.

    Computed as x / (1 + exp(-2u)), the same function, which keeps its relative accuracy where 1 + tanh(u) cancels.
    """
    exponent = np.clip(-2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3), None, 700.0)  # exp(710) overflows
    return np.asarray(x / (1.0 + np.exp(exponent)))


class PluginMaths:
    """Looks at the reference's GELU inputs as they pass, and keeps the plugin's error beside torch's own.

    Both errors are against float64 on the same rounded inputs, so this truth is not the comparison's: its rows bring
    their own budgets.
    """

    def __init__(self, config: AndreaConfig, cache_dir: Path) -> None:
        self._layers = frozenset(gelu_layers(config))
        self._storage_types = andrea_gelu().storage_types
        self._rows: dict[str, list[LayerRow]] = {storage: [] for storage in self._storage_types}
        self._unavailable = ""
        try:
            self._host: Any = build_host_library(cache_dir)
        except (BackendUnavailable, PluginError) as error:
            self._unavailable = str(error)

    def see(self, segment: Segment, reference: ByCase) -> None:
        """Takes in a segment; only a block has a GELU."""
        for layer in segment.layers:
            if layer in self._layers and not self._unavailable:
                inputs = [layers[layer.removesuffix("gelu") + "fc"] for layers in reference.values()]
                for storage in self._storage_types:
                    self._rows[storage].append(self._row(layer, storage, inputs))

    def results(self) -> Iterator[tuple[Candidate, tuple[LayerRow, ...]]]:
        """One candidate a storage type, ``plugin-maths-fp16`` and so on, with one row a GELU."""
        for storage, rows in self._rows.items():
            failed = [row.name for row in rows if row.verdict == "fail"]
            verdict: Verdict = "not-measured" if self._unavailable else "fail" if failed or not rows else "pass"
            candidate = Candidate(
                name=f"{PLUGIN_MATHS}{storage}",
                verdict=verdict,
                reason=self._unavailable or (f"{len(failed)} of {len(rows)} GELUs out of budget" if failed else ""),
                precision=storage,
                first_failure=failed[0] if failed else None,
                has_own_truth=True,
            )
            yield candidate, tuple(rows)

    def _row(self, layer: str, storage: str, inputs: Sequence[npt.NDArray[Any]]) -> LayerRow:
        plugin_error, torch_error = LayerErrors(), ErrorSums()
        for index, values in enumerate(inputs):
            x = values.astype(DTYPES[storage].numpy)
            expected = gelu_tanh(x.astype(np.float64))
            plugin_error.add(f"case {index}", expected, self._host.apply(x, storage), dtype=storage)
            torch_error.add(expected, _torch_gelu(x, storage))
        metrics, budget = plugin_error.as_metrics(), budget_of(torch_error, storage)
        failures = failures_of(metrics, budget)
        return LayerRow(
            name=layer,
            candidate=f"{PLUGIN_MATHS}{storage}",
            verdict="fail" if failures else "pass",
            metrics=metrics,
            budget=budget,
            basis=basis_of(torch_error, storage),
            failures=failures,
            dtype=storage,
            worst=plugin_error.worst,
            ulp_histogram=plugin_error.ulp_histogram(),
        )


def _torch_gelu(x: npt.NDArray[Any], storage: str) -> npt.NDArray[Any]:
    tensor = torch.from_numpy(x.astype(np.float32)).to(getattr(torch, DTYPES[storage].torch))
    return F.gelu(tensor, approximate="tanh").to(torch.float32).numpy()
