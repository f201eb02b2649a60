"""A report of any size without a model: what renderers are tested and timed on. Every figure in it is different."""

from __future__ import annotations

from collections.abc import Iterator

from andrea_export.core.names import BLOCK_LAYERS
from andrea_export.report.schema import (
    Candidate,
    Check,
    Failure,
    LanguageModelRow,
    LayerRow,
    LocalError,
    Metric,
    RatchetRow,
    Report,
    Spread,
    UlpHistogram,
    WorstElement,
)

NUM_POSITIONS, NUM_CHANNELS = 48, 64
EDGES = (0, 1, 2, 4, 8, 16, 32, 64)
LM_CASES = (
    "context 1",
    "context 2",
    "context 128",
    "context 1023",
    "context 1024",
    "left-padded batch",
    "decode with cache",
)
FAULTY_CANDIDATE = "onnxruntime-cpu-fp16"


def synthetic_report(*, num_blocks: int = 2, faulty_layer: str | None = "blocks.1.mlp.gelu") -> Report:
    """Two measured candidates and one not measured; with a faulty layer the second fails there and downstream."""
    layers = (
        "token_embed",
        *(f"blocks.{block}.{name}" for block in range(num_blocks) for name in BLOCK_LAYERS),
        "ln_f",
        "logits",
    )
    failing = faulty_layer is not None
    return Report(
        reference={"name": "torch-fp64", "weights": "synthetic.safetensors (sha256 0123456789ab)"},
        inputs={"prefill": {"batch": 3, "sequence": NUM_POSITIONS, "past": 0, "padding": [0, 6, 24]}},
        candidates=(
            Candidate(name="onnxruntime-cpu", verdict="pass", facts={"taps_moved_logits_by": 2.5e-7}),
            Candidate(
                name=FAULTY_CANDIDATE,
                verdict="fail" if failing else "pass",
                precision="fp16",
                reason=f"{len(layers) - layers.index(faulty_layer)} layers out of budget" if faulty_layer else "",
                first_failure=faulty_layer,
                provenance={"kind": "onnx", "sha256": "ab" * 32},
            ),
            Candidate(name="tensorrt-rtx-fp16", verdict="not-measured", precision="fp16", reason="needs a GPU"),
        ),
        checks=(Check(name="weights", verdict="pass", detail="all parameters are bit for bit the model's"),),
        layers=(
            *_rows("onnxruntime-cpu", layers, 1e-7, None),
            *_rows(FAULTY_CANDIDATE, layers, 1e-3, faulty_layer),
        ),
        layer_order=layers,
        formula="budget = 4 x torch's own error in the candidate's precision",
        language_model=tuple(_language_model()),
        ratchet=(
            RatchetRow(
                candidate="onnxruntime-cpu",
                name="logits",
                error="accumulated",
                metric="max_abs",
                relation="at most",
                baseline=1.5e-6,
                limit=1.65e-6,
                obtained=1.6e-6,
                verdict="pass",
            ),
        ),
        policy={"name": "default", "k": 4.0},
        metrics={
            "max_abs": Metric(unit="the layer's own", better="lower", meaning="largest |candidate - reference|"),
            "relative_l2": Metric(unit="", better="lower", meaning="norm of the error over the reference's"),
            "cosine": Metric(unit="", better="higher", meaning="cosine of candidate and reference"),
        },
        versions={"torch": "2.13.0", "onnxruntime": "1.32.0"},
    )


def _rows(candidate: str, layers: tuple[str, ...], size: float, faulty: str | None) -> Iterator[LayerRow]:
    broken = False
    for index, name in enumerate(layers):
        broken = broken or name == faulty
        scale = size * (1 + 0.137 * index)
        own = _local(scale, broken=name == faulty)
        error = _error(scale * 1.713, broken=broken)
        yield LayerRow(
            name=name,
            candidate=candidate,
            verdict="fail" if broken else "pass",
            metrics=error.metrics,
            budget=error.budget,
            basis=error.basis,
            failures=error.failures,
            dtype="fp32",
            worst=WorstElement(
                case="prefill", index=(index % 3, 7, 11), reference=0.25 + index, candidate=0.2517 + index
            ),
            ulp_histogram=UlpHistogram(edges=EDGES, counts=_ulp_counts(index)),
            spread=Spread(
                cases=("prefill", "decode"),
                by_position=_curve(scale / 4, NUM_POSITIONS, 37 + index),
                by_channel=_curve(scale / 5, NUM_CHANNELS, 29 + index),
                worst_channels=((3, scale), (17, scale / 2)),
            ),
            local=own,
        )


def _ulp_counts(index: int) -> tuple[int, ...]:
    return tuple(9000 // (1 + step) ** 3 + index for step in range(len(EDGES)))


def _curve(size: float, length: int, stride: int) -> tuple[float, ...]:
    return tuple(size * (1 + at * stride % 41 / 9) for at in range(length))


def _local(scale: float, *, broken: bool) -> LocalError:
    error = _error(scale, broken=broken)
    return LocalError(
        verdict="fail" if broken else "pass",
        metrics=error.metrics,
        budget=error.budget,
        basis=error.basis,
        failures=error.failures,
        worst=WorstElement(case="prefill", index=(0, 1, 2), reference=1.5, candidate=1.5 + scale),
    )


def _error(scale: float, *, broken: bool) -> LocalError:
    """Figures around a size; a broken layer's are a hundred times as large and out of budget."""
    grown = scale * (100 if broken else 1)
    metrics = {
        "max_abs": grown * 1.01,
        "mean_abs": grown * 0.21,
        "relative_l2": grown * 0.83,
        "cosine": 1 - grown / 7,
        "max_ulp": grown / 6e-8 * 1.7,
        "p999_ulp": grown / 6e-8 * 0.9,
        "max_reference": 1.3,
        "num_nan": 0,
        "num_inf": 0,
        "num_values": 12_288,
    }
    basis = {"max_abs": scale * 1.1, "relative_l2": scale * 0.9}
    budget = {name: 4 * value for name, value in basis.items()}
    failures = tuple(
        Failure(metric=name, relation="at most", expected=limit, obtained=metrics[name])
        for name, limit in budget.items()
        if metrics[name] > limit
    )
    return LocalError(verdict="pass", metrics=metrics, budget=budget, basis=basis, failures=failures)


def _language_model() -> Iterator[LanguageModelRow]:
    for candidate, size in (("onnxruntime-cpu", 1e-9), (FAULTY_CANDIDATE, 1e-5)):
        for index, case in enumerate(LM_CASES):
            kl = size * (1 + index * 0.31)
            yield LanguageModelRow(
                candidate=candidate,
                case=case,
                context=128,
                num_positions=128 + index,
                verdict="pass",
                metrics={
                    "top1_agreement": 1 - kl * 300,
                    "top5_overlap": 1 - kl * 90,
                    "kl_mean": kl,
                    "kl_p99": kl * 6.1,
                    "kl_max": kl * 31.7,
                    "perplexity_reference": 6.5 + index / 100,
                    "perplexity_candidate": 6.5 + index / 100 + kl,
                    "perplexity_difference": kl * 1.3,
                },
                budget={"kl_max": kl * 100},
            )
