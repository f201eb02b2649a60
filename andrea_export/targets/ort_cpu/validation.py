"""The ``ort-cpu`` graphs as candidates: layer by layer against torch, and what quantising did to the words they say.

Owns what their budgets are multiples of (see ``quantized_reference``) and which layers a graph has under names; a
policy judges the rows like all others. A cache that is appended to in place cannot be fed layer by layer, so the errors
are accumulated ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea_export.compare.inputs import Arrays, Case
from andrea_export.compare.runs import ByCase
from andrea_export.compare.session_run import run_case
from andrea_export.core.errors import AndreaError, BackendUnavailable
from andrea_export.core.names import layer_names
from andrea_export.core.precision import OrtPrecision
from andrea_export.core.progress import Progress
from andrea_export.judge.budget import basis_of
from andrea_export.report.metrics import ErrorSums, LayerErrors
from andrea_export.report.schema import Candidate, LayerRow
from andrea_export.sessions.base import Session
from andrea_export.sessions.onnxruntime import provider_availability
from andrea_export.targets.ort_cpu.derive import linear_kinds, scaled_rows
from andrea_export.targets.ort_cpu.files import files_of
from andrea_export.targets.ort_cpu.options import OrtCpu
from andrea_export.targets.ort_cpu.session import OrtCpuSession
from andrea_model.config import AndreaConfig
from andrea_model.model import Andrea

STEP = "validate"
# Not in these graphs at all: causality and lengths are inside the attention operator. What it feeds is compared.
FUSED_AWAY = ("mask",)

Measured = tuple[Candidate, tuple[LayerRow, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How a candidate's next-token distributions stand to the reference's, over all real positions."""

    kl_mean: float
    """Mean of KL(reference ‖ candidate), in nats."""
    kl_max: float
    top1: float
    """Share of positions where both would say the same token."""


def agreement(reference_NV: npt.NDArray[Any], candidate_NV: npt.NDArray[Any]) -> Agreement:
    """The agreement of two sets of logits, position by position, computed in fp64."""
    log_p, log_q = _log_softmax(reference_NV), _log_softmax(candidate_NV)
    kl_N = (np.exp(log_p) * (log_p - log_q)).sum(axis=-1)
    return Agreement(
        kl_mean=float(kl_N.mean()),
        kl_max=float(kl_N.max()),
        top1=float((reference_NV.argmax(axis=-1) == candidate_NV.argmax(axis=-1)).mean()),
    )


def measure_ort_cpu(
    folder: Path,
    precisions: Sequence[OrtPrecision],
    options: OrtCpu,
    model: Andrea,
    cases: Sequence[Case],
    progress: Progress,
) -> Iterator[Measured]:
    """One candidate for each graph of these precisions, ``ort-cpu-int4-prefill`` for example, not yet judged."""
    if not precisions:
        return
    from andrea_export.sessions.torch_reference import TorchSession

    layers = tuple(name for name in layer_names(model.config) if name not in FUSED_AWAY)
    with TorchSession(model, precision="fp64", layers=layers) as session:
        truth = _run(session, model.config, cases, "fp64")
    for precision in precisions:
        files = files_of(precision, options.int8_decode)
        for file in dict.fromkeys((files.decode, files.prefill)):
            progress.detail(STEP, file)
            rounded = _rounded_reference(model, precision, options, prefill=file != files.decode)
            with TorchSession(rounded, precision="fp32", layers=layers) as session:
                errors = _error_sums(layers, truth, _run(session, model.config, cases, "fp32"))
            yield _measure(folder / file, precision, model.config, layers, cases, truth, errors)


def _measure(
    model: Path,
    precision: OrtPrecision,
    config: AndreaConfig,
    layers: Sequence[str],
    cases: Sequence[Case],
    truth: ByCase,
    torch_errors: Mapping[str, ErrorSums],
) -> Measured:
    name = model.stem
    availability = provider_availability("cpu")
    if not availability.available:
        return Candidate(name=name, verdict="not-measured", reason=availability.reason, precision=precision), ()
    try:
        with OrtCpuSession(model, config, taps=layers, name=name) as session:
            gives = session.output_names
            found = _run(session, config, cases, "fp32")
    except BackendUnavailable as error:
        return Candidate(name=name, verdict="not-measured", reason=str(error), precision=precision), ()
    except AndreaError as error:
        refused = {"refused": str(error)}
        return Candidate(name=name, verdict="fail", reason=str(error), precision=precision, facts=refused), ()
    # The graph that fills the cache ends with the last block's keys and values: it has no layer after them to miss.
    wanted = layers if "logits" in gives else [layer for layer in layers if layer in gives]
    positions = {case.name: case.token_positions for case in cases}
    rows = tuple(_row(layer, name, truth, found, torch_errors[layer], positions) for layer in wanted)
    facts: dict[str, Any] = {**_agreement_facts(cases, truth, found), "fused_away": list(FUSED_AWAY)}
    return Candidate(name=name, verdict="not-measured", precision=precision, facts=facts), rows


def _row(layer: str, name: str, truth: ByCase, found: ByCase, torch_error: ErrorSums, positions: Arrays) -> LayerRow:
    """One layer over all cases; the verdict is the policy's to give."""
    errors, problem = LayerErrors(), ""
    for case, values in found.items():
        expected = truth[case][layer]
        if layer not in values:
            problem = "missing: the candidate has no such layer"
        elif values[layer].shape != expected.shape:
            problem = f"has shape {list(values[layer].shape)}, expected {list(expected.shape)}"
        else:
            errors.add(case, expected, values[layer], dtype="fp32", positions=positions[case])
            continue
        return LayerRow(name=layer, candidate=name, verdict="fail", metrics={}, budget={}, problem=problem)
    return LayerRow(
        name=layer,
        candidate=name,
        verdict="not-measured",
        metrics=errors.as_metrics(),
        budget={},
        basis=basis_of(torch_error, "fp32"),
        dtype="fp32",
        worst=errors.worst,
        ulp_histogram=errors.ulp_histogram(),
        spread=errors.spread(),
    )


def _rounded_reference(model: Andrea, precision: OrtPrecision, options: OrtCpu, *, prefill: bool) -> Andrea:
    """torch rounding as the graph does; for fp32 the model itself."""
    if precision == "fp32":
        return model
    from andrea_export.targets.ort_cpu.torch_quantized import quantized_reference

    kinds = linear_kinds(model.config, precision, options)
    if prefill:
        kinds = {module: "fp32" if kind == "fp32" else "int8" for module, kind in kinds.items()}
    blockwise = options.int8_decode == "blockwise" and not prefill
    by_row = scaled_rows(kinds, precision, options)
    return quantized_reference(model, kinds, int4_block=options.int4_block, blockwise=blockwise, scaled_rows=by_row)


def _run(session: Session, config: AndreaConfig, cases: Sequence[Case], cache: str) -> ByCase:
    """Every case in order, each with the session's own cache from the case it follows. Raises: RunError."""
    dtype: np.dtype[Any] = np.dtype(np.float64 if cache == "fp64" else np.float32)
    found: dict[str, Arrays] = {}
    for case in cases:
        found[case.name] = run_case(session, config, case, found, dtype)
    return found


def _error_sums(layers: Sequence[str], truth: ByCase, found: ByCase) -> dict[str, ErrorSums]:
    sums = {layer: ErrorSums() for layer in layers}
    for case, values in found.items():
        for layer in layers:
            sums[layer].add(truth[case][layer], values[layer])
    return sums


def _agreement_facts(cases: Sequence[Case], truth: ByCase, found: ByCase) -> dict[str, float]:
    """The agreement with the reference over the real positions of every case; nothing where there are no logits."""
    if any("logits" not in values for values in found.values()):
        return {}
    real = {case.name: case.attention_mask[:, -case.input_ids.shape[1] :] != 0 for case in cases}
    got = agreement(
        np.concatenate([truth[name]["logits"][mask] for name, mask in real.items()]),
        np.concatenate([found[name]["logits"][mask] for name, mask in real.items()]),
    )
    return {"kl_mean": got.kl_mean, "kl_max": got.kl_max, "top1": got.top1}


def _log_softmax(logits_NV: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    shifted = logits_NV.astype(np.float64) - logits_NV.max(axis=-1, keepdims=True)
    result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result
