"""The lesson's trace: one token through one block, every step with its shape and statistics, backends side by side.

Owns the steps and their order; runs any Session that has layers, computes statistics, renders nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from andrea_export.core.dtypes import DTYPES
from andrea_export.core.errors import RunError, UsageError
from andrea_export.core.names import BLOCK_LAYERS, present_names
from andrea_export.sessions.base import Session, zero_cache
from andrea_export.sessions.generation import step_feeds
from andrea_model.config import AndreaConfig

Array = npt.NDArray[Any]
WeightsSource = Literal["node output", "computed from q and k"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Of one step's values for one token, computed in fp64; ``std`` is the population's."""

    mean: float
    std: float
    min: float
    max: float
    l2: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One step on one backend. ``max_abs_difference`` is against the first backend of the trace; None for that one."""

    statistics: Statistics
    max_abs_difference: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the block: what it computes, the shape of its result for one token, and what each backend got.

    A backend that has no such tensor (an engine fused it away) has no observation.
    """

    name: str
    formula: str
    layer: str
    shape: tuple[int, ...]
    observations: Mapping[str, Observation]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One token through one block."""

    config: AndreaConfig
    weights: str
    block: int
    tokens: tuple[int, ...]
    position: int
    backends: tuple[str, ...]
    runs_in: Mapping[str, str]
    """Backend → the precision it ran in, and the version of what ran it."""
    attention_weights_from: Mapping[str, WeightsSource]
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendLayers:
    """What one backend's run gave: layer name → array, as it came out of the session."""

    name: str
    layers: Mapping[str, Array]
    runs_in: str = "fp32"
    """The precision it ran in, and the version of what ran it."""


def trace_as_json(trace: Trace) -> dict[str, Any]:
    """The trace as plain JSON values."""
    return asdict(trace)


def check_trace(config: AndreaConfig, *, tokens: Sequence[int], position: int | None, block: int) -> int:
    """The position traced (the last token's where None). Raises UsageError naming every problem at once."""
    problems = []
    if not tokens:
        problems.append("no tokens given, expected at least one")
    outside = [token for token in tokens if not 0 <= token < config.vocab_size]
    if outside:
        problems.append(
            f"token id {', '.join(map(str, outside[:8]))} is outside the vocabulary, expected 0 to "
            f"{config.vocab_size - 1}"
        )
    if len(tokens) > config.n_ctx:
        problems.append(f"{len(tokens)} tokens are more than the model's {config.n_ctx} positions")
    if position is not None and tokens and not 0 <= position < len(tokens):
        problems.append(f"position {position} does not exist, expected {_up_to(len(tokens))}")
    if not 0 <= block < config.n_layer:
        problems.append(f"block {block} does not exist, expected {_up_to(config.n_layer)}")
    if problems:
        raise UsageError("; ".join(problems), hint="see andrea-export trace --help")
    return len(tokens) - 1 if position is None else position


def _up_to(count: int) -> str:
    return f"0 to {count - 1}" if count > 1 else "0, the only one"


def stream_layer(block: int) -> str:
    """The layer whose value is the residual stream that enters a block."""
    return f"blocks.{block - 1}.mlp_residual" if block else "embed_residual"


def lesson_layers(block: int) -> tuple[str, ...]:
    """The module paths a session must show for the trace of one block."""
    return (stream_layer(block), *(f"blocks.{block}.{layer}" for layer in BLOCK_LAYERS))


def attention_weights_name(block: int) -> str:
    """The name under which a session returns softmax(q·kᵀ / sqrt(D)), ``[B, H, S, K]``, where it can."""
    return f"blocks.{block}.attn.weights"


def run_lesson(
    session: Session, config: AndreaConfig, tokens: Sequence[int], *, cache_dtype: str = "fp32"
) -> BackendLayers:
    """One forward pass over the tokens, with an empty cache of that type (a key of ``dtypes.DTYPES``).

    Raises: RunError.
    """
    cache = zero_cache(config, batch=1, past=0, dtype=DTYPES[cache_dtype].numpy)
    return BackendLayers(name=session.name, layers=session.run(step_feeds(tokens, 0, cache)))


def trace_from_layers(
    runs: Sequence[BackendLayers],
    config: AndreaConfig,
    *,
    weights: str,
    tokens: Sequence[int],
    position: int,
    block: int,
) -> Trace:
    """The trace of one token, from what each backend's run gave; the first is what the others are compared with.

    Raises: RunError where no backend shows a single step.
    """
    steps = []
    for name, formula, layer, pick in _steps(config, position, block):
        values = {run.name: found for run in runs if (found := pick(run.layers)) is not None}
        if not values:
            continue
        first = values.get(runs[0].name)
        steps.append(
            Step(
                name=name,
                formula=formula,
                layer=layer,
                shape=tuple(next(iter(values.values())).shape),
                observations={
                    backend: Observation(
                        statistics=_statistics(value),
                        max_abs_difference=_difference(value, first)
                        if first is not None and backend != runs[0].name
                        else None,
                    )
                    for backend, value in values.items()
                },
            )
        )
    if not steps:
        raise RunError(f"none of {', '.join(run.name for run in runs)} shows a step of block {block}")
    return Trace(
        config=config,
        weights=weights,
        block=block,
        tokens=tuple(tokens),
        position=position,
        backends=tuple(run.name for run in runs),
        runs_in={run.name: run.runs_in for run in runs},
        attention_weights_from={
            run.name: "node output" if attention_weights_name(block) in run.layers else "computed from q and k"
            for run in runs
            if attention_weights_name(block) in run.layers or f"blocks.{block}.attn.qkv" in run.layers
        },
        steps=tuple(steps),
    )


def model_with_attention_weights(model: Path, block: int, folder: Path) -> Path:
    """A copy of the model in which one block's attention weights are an output; everything else is as it was.

    Source: https://onnx.ai/onnx/operators/onnx__Attention.html: the fourth output, ``qk_matmul_output``, holds the
    values after softmax where ``qk_matmul_output_mode`` is 3. Raises: RunError for a graph that has no such node.
    """
    import onnx_ir as ir

    graph_model = ir.load(model)
    graph = graph_model.graph
    inside = f"blocks.{block}.attn"
    found = [node for node in graph if node.op_type == "Attention" and str(node.name).startswith(f"{inside}.")]
    if len(found) != 1:
        raise RunError(
            f"{model} has {len(found)} Attention nodes in {inside}, expected 1",
            hint="trace a model.onnx of andrea-export",
        )
    node = found[0]
    node.resize_outputs(4)
    node.attributes["qk_matmul_output_mode"] = ir.AttrInt64("qk_matmul_output_mode", 3)
    for unused in node.outputs[1:3]:
        unused.name = ""  # ONNX's spelling of an optional output that is left out
    weights = node.outputs[3]
    weights.name = attention_weights_name(block)
    weights.type = ir.TensorType(ir.DataType.FLOAT)
    graph.outputs.append(weights)
    path = folder / "model.onnx"
    ir.save(graph_model, path, external_data="model.onnx.data")
    return path


# --- the steps -------------------------------------------------------------------------------------------------------

Pick = Callable[[Mapping[str, Array]], "Array | None"]


def _steps(config: AndreaConfig, position: int, block: int) -> list[tuple[str, str, str, Pick]]:
    """(name, formula, layer, how to take the token's values from a run) in the order of the lesson."""
    inside = f"blocks.{block}"
    heads, width = config.n_head, config.d_head

    def of_layer(layer: str) -> Pick:
        return lambda layers: layers[layer][0, position] if layer in layers else None

    def of_qkv(index: int) -> Pick:
        def pick(layers: Mapping[str, Array]) -> Array | None:
            if f"{inside}.attn.qkv" in layers:
                return np.split(layers[f"{inside}.attn.qkv"][0, position], 3)[index].reshape(heads, width)
            name = ("", *present_names(block))[index]  # an engine shows its new keys and values, never its q
            return layers[name][0, :, position] if name in layers else None

        return pick

    def attention_weights(layers: Mapping[str, Array]) -> Array | None:
        name = attention_weights_name(block)
        if name in layers:
            return layers[name][0, :, position, : position + 1]
        if f"{inside}.attn.qkv" not in layers:
            return None
        q, k, _ = np.split(layers[f"{inside}.attn.qkv"][0, : position + 1].astype(np.float64), 3, axis=-1)
        q_HD, k_KHD = q[position].reshape(heads, width), k.reshape(-1, heads, width)
        scores_HK = np.einsum("hd,khd->hk", q_HD, k_KHD) / np.sqrt(width)
        weights_HK: Array = np.exp(scores_HK - scores_HK.max(axis=-1, keepdims=True))
        weights_HK /= weights_HK.sum(axis=-1, keepdims=True)
        return weights_HK

    def step(name: str, formula: str, layer: str, pick: Pick | None = None) -> tuple[str, str, str, Pick]:
        path = layer if layer == stream_layer(block) else f"{inside}.{layer}"
        return name, formula, path, pick or of_layer(path)

    return [
        step("residual stream in", "x", stream_layer(block)),
        step("LayerNorm", "a = LayerNorm(x)", "ln_1"),
        step("q", "q = a·W_q + b_q", "attn.qkv", of_qkv(0)),
        step("k", "k = a·W_k + b_k", "attn.qkv", of_qkv(1)),
        step("v", "v = a·W_v + b_v", "attn.qkv", of_qkv(2)),
        step("attention weights", "w = softmax(q·kᵀ / sqrt(d_head))", "attn.weights", attention_weights),
        step("heads' context", "c = w·v", "attn.context"),
        step("attention delta", "d = c·W_o + b_o", "attn.proj"),
        step("residual add", "x = x + d", "attn_residual"),
        step("LayerNorm", "m = LayerNorm(x)", "ln_2"),
        step("W_1", "h = m·W_1 + b_1", "mlp.fc"),
        step("GELU", "g = GELU(h)", "mlp.gelu"),
        step("W_2 (MLP delta)", "y = g·W_2 + b_2", "mlp.proj"),
        step("residual add", "x = x + y", "mlp_residual"),
    ]


def _statistics(value: Array) -> Statistics:
    exact = value.astype(np.float64)
    return Statistics(
        mean=float(exact.mean()),
        std=float(exact.std()),
        min=float(exact.min()),
        max=float(exact.max()),
        l2=float(np.linalg.norm(exact)),
    )


def _difference(value: Array, reference: Array) -> float:
    return float(np.abs(value.astype(np.float64) - reference.astype(np.float64)).max())
