"""A graph for onnxruntime's CPU kernels as a source: its layers, and what its rounding does to predictions.

Its cache is appended to in place, so that no layer of it can be fed: its errors are accumulated ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from andrea_export.compare.inputs import Case
from andrea_export.compare.language.figures import agreement
from andrea_export.compare.runs import ByCase, LayerRun, LocalErrors, Rounding, SessionRun, Visible, rounding_of
from andrea_export.compare.sources.base import Identity, Source, origin_key
from andrea_export.core.errors import BackendUnavailable
from andrea_export.core.names import layer_names, present_names
from andrea_export.core.precision import OrtPrecision
from andrea_export.sessions.onnxruntime import provider_availability
from andrea_export.targets.ort_cpu.derive import linear_kinds, scaled_rows
from andrea_export.targets.ort_cpu.files import files_of
from andrea_export.targets.ort_cpu.options import OrtCpu
from andrea_export.targets.ort_cpu.session import OrtCpuSession
from andrea_export.weights.origin import WeightsOrigin
from andrea_model.config import AndreaConfig

# Not in these graphs at all: causality and lengths are inside the attention operator. What it feeds is compared.
FUSED_AWAY = ("mask",)


class OrtCpuSource(Source):
    """One graph of a precision, ``ort-cpu-int4-prefill`` for example."""

    def __init__(
        self, file: Path, config: AndreaConfig, origin: WeightsOrigin, *, precision: OrtPrecision, rounding: Rounding
    ) -> None:
        self._file = file
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
        taps = tuple(name for name in layer_names(self._config) if name not in FUSED_AWAY)
        fp32 = np.dtype(np.float32)
        with self.session(taps=taps) as session:
            visible = Visible(
                layers=frozenset(taps if "logits" in session.output_names else _until_the_cache(taps, self._config)),
                fused_away=list(FUSED_AWAY),
                local_errors=LocalErrors.NONE,
            )
            return SessionRun(session, self._config, cases, cache_dtype=fp32, visible=visible)

    def session(self, taps: Sequence[str] = ()) -> OrtCpuSession:
        """See ``Source``."""
        availability = provider_availability("cpu")
        if not availability.available:
            raise BackendUnavailable(availability.reason, hint=availability.hint)
        return OrtCpuSession(self._file, self._config, taps=taps, name=self.identity.name)

    def facts_of_outputs(self, cases: Sequence[Case], reference: ByCase, found: ByCase) -> Mapping[str, object]:
        """The agreement of next-token distributions over all real positions; nothing where there are no logits."""
        if any("logits" not in found.get(case.name, {}) for case in cases):
            return {}
        real = {case.name: case.attention_mask[:, -case.input_ids.shape[1] :] != 0 for case in cases}
        got = agreement(
            np.concatenate([reference[name]["logits"][mask] for name, mask in real.items()]),
            np.concatenate([found[name]["logits"][mask] for name, mask in real.items()]),
        )
        return {"kl_mean": got.kl_mean, "kl_max": got.kl_max, "top1": got.top1}


def ort_cpu_sources(
    folder: Path, precisions: Sequence[OrtPrecision], options: OrtCpu, config: AndreaConfig, origin: WeightsOrigin
) -> list[OrtCpuSource]:
    """The graphs of these precisions in a folder, as ``options`` made them."""
    found = []
    for precision in precisions:
        files = files_of(precision, options.int8_decode)
        for name in dict.fromkeys((files.decode, files.prefill)):
            rounding = _rounding(Path(name).stem, config, precision, options, prefill=name != files.decode)
            found.append(OrtCpuSource(folder / name, config, origin, precision=precision, rounding=rounding))
    return found


def _rounding(name: str, config: AndreaConfig, precision: OrtPrecision, options: OrtCpu, *, prefill: bool) -> Rounding:
    if precision == "fp32":
        return rounding_of(precision)
    kinds = linear_kinds(config, precision, options)
    if prefill:
        kinds = {module: "fp32" if kind == "fp32" else "int8" for module, kind in kinds.items()}

    def convert(part: Any, path: str) -> Any:
        from andrea_export.targets.ort_cpu.torch_quantized import quantized_part

        return quantized_part(
            part,
            path,
            kinds,
            int4_block=options.int4_block,
            blockwise=options.int8_decode == "blockwise" and not prefill,
            scaled_rows=scaled_rows(kinds, precision, options),
        )

    return Rounding(name=name, precision="fp32", convert=convert)


def _until_the_cache(layers: Sequence[str], config: AndreaConfig) -> Sequence[str]:
    """Those of a graph that only fills the cache: it ends with the last block's keys and values."""
    last = max(layers.index(name) for name in present_names(config.n_layer - 1))
    return layers[: last + 1]
