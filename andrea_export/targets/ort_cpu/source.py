"""A graph for onnxruntime's CPU kernels as a source: its layers, and what its rounding does to predictions.

Its cache is appended to in place, so that no layer of it can be fed: its errors are accumulated ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from andrea_export.compare.inputs import Case
from andrea_export.compare.language.figures import agreement
from andrea_export.compare.runs import ByCase, LayerRun, LocalErrors, Rounding, SessionRun, Visible, rounding_of
from andrea_export.compare.sources.base import Identity, Source, origin_key
from andrea_export.core.errors import BackendUnavailable
from andrea_export.core.names import layer_names
from andrea_export.core.precision import OrtPrecision
from andrea_export.sessions.onnxruntime import provider_availability
from andrea_export.targets.ort_cpu.derive import linear_kinds
from andrea_export.targets.ort_cpu.files import files_of
from andrea_export.targets.ort_cpu.options import OrtCpu
from andrea_export.targets.ort_cpu.session import OrtCpuSession
from andrea_export.weights.origin import WeightsOrigin
from andrea_model.config import AndreaConfig


class OrtCpuSource(Source):
    """One graph of a precision, ``ort-cpu-int4`` for example."""

    def __init__(
        self,
        file: Path,
        config: AndreaConfig,
        origin: WeightsOrigin,
        *,
        precision: OrtPrecision,
        rounding: Rounding,
        library: Path | None,
    ) -> None:
        self._file = file
        self._library = library
        self._config = config
        self._rounding = rounding
        self.identity = Identity(
            name=file.stem,
            kind="ort-cpu",
            precision=precision,
            config=config,
            weights=str(origin),
            origin=origin_key(origin),
            provenance={},
            is_in_manifest=True,
        )

    @property
    def rounding(self) -> Rounding:
        """Torch, rounding as the graph does."""
        return self._rounding

    def layers(self, cases: Sequence[Case]) -> LayerRun:
        """See ``Source``."""
        gone = self._fused_away
        taps = tuple(name for name in layer_names(self._config) if name not in gone)
        visible = Visible(layers=frozenset(taps), fused_away=list(gone), local_errors=LocalErrors.NONE)
        with self.session(taps=taps) as session:
            return SessionRun(session, self._config, cases, cache_dtype=np.dtype(np.float32), visible=visible)

    @property
    def _fused_away(self) -> tuple[str, ...]:
        """The layers that are inside another one's node. What that gives is compared."""
        graph = onnx.load(self._file, load_external_data=False).graph
        made = {name for node in graph.node for name in node.output}
        return tuple(name for name in layer_names(self._config) if name not in made)

    def session(self, taps: Sequence[str] = ()) -> OrtCpuSession:
        """See ``Source``."""
        availability = provider_availability("cpu")
        if not availability.available:
            raise BackendUnavailable(availability.reason, hint=availability.hint)
        return OrtCpuSession(self._file, self._config, taps=taps, name=self.identity.name, library=self._library)

    def facts_of_outputs(self, cases: Sequence[Case], reference: ByCase, found: ByCase) -> Mapping[str, object]:
        """The agreement of next-token distributions over all real positions."""
        real = {case.name: case.attention_mask[:, -case.input_ids.shape[1] :] != 0 for case in cases}
        got = agreement(
            np.concatenate([reference[name]["logits"][mask] for name, mask in real.items()]),
            np.concatenate([found[name]["logits"][mask] for name, mask in real.items()]),
        )
        return {"kl_mean": got.kl_mean, "kl_max": got.kl_max, "top1": got.top1}


def ort_cpu_sources(
    folder: Path,
    precisions: Sequence[OrtPrecision],
    options: OrtCpu,
    config: AndreaConfig,
    origin: WeightsOrigin,
    *,
    library: Path | None,
) -> list[OrtCpuSource]:
    """The graphs of these precisions in a folder, as ``options`` made them, run with the operators of ``library``."""
    found = []
    for precision in precisions:
        file = folder / files_of(precision).graph
        rounding = _rounding(file.stem, config, precision, options)
        own = None if files_of(precision).weights is None else library
        found.append(OrtCpuSource(file, config, origin, precision=precision, rounding=rounding, library=own))
    return found


def _rounding(name: str, config: AndreaConfig, precision: OrtPrecision, options: OrtCpu) -> Rounding:
    if precision == "fp32":
        return rounding_of(precision)
    kinds = linear_kinds(config, precision, options)

    def convert(part: Any, path: str) -> Any:
        from andrea_export.targets.ort_cpu.torch_quantized import quantized_part

        return quantized_part(part, path, kinds, int4_block=options.int4_block)

    return Rounding(name=name, precision="fp32", convert=convert)
