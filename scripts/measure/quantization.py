"""What a variant of the CPU graphs costs on windows of text: its logits against the fp32 graph's."""

import math
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea_export.compare.language.figures import agreement
from andrea_export.core.precision import OrtPrecision
from andrea_export.graph.canonical.export import export_canonical
from andrea_export.operators.build import build_cpu_library
from andrea_export.runtime.cores import num_usable_cores
from andrea_export.runtime.open import open_shared
from andrea_export.targets.ort_cpu.derive import derive_ort_cpu
from andrea_export.targets.ort_cpu.files import files_of
from andrea_export.targets.ort_cpu.options import OrtCpu
from andrea_export.targets.ort_cpu.passes.linear_layers import BLOCK_LINEARS
from andrea_export.weights.load import LoadedModel
from andrea_model.config import AndreaConfig

Logits = npt.NDArray[Any]


def rows_of(loaded: LoadedModel, text: Path, num_windows: int, length: int) -> list[dict[str, Any]]:
    """A row for every variant, the fp32 graph first."""
    windows = _windows(text, num_windows, length)
    with tempfile.TemporaryDirectory(prefix="andrea-") as name:
        folder = Path(name)
        export_canonical(loaded, folder)
        exact = _logits(folder, loaded.config, "fp32", OrtCpu(), windows)
        return [
            _row(label, _logits(folder, loaded.config, precision, recipe, windows), exact, windows)
            for label, precision, recipe in _variants(loaded.config.n_layer)
        ]


def _variants(num_blocks: int) -> list[tuple[str, OrtPrecision, OrtCpu]]:
    plain4 = OrtCpu(int4_block=32, int4_keep=())
    blocks = [f"blocks.{block}" for block in range(num_blocks)]
    found: list[tuple[str, OrtPrecision, OrtCpu]] = [
        ("fp32", "fp32", OrtCpu()),
        ("int8 (default)", "int8", OrtCpu()),
        *((f"int8, {name} in fp32", "int8", OrtCpu(int8_keep=(name,))) for name in (*BLOCK_LINEARS, *blocks)),
        ("int4, blocks of 32", "int4", plain4),
        *(
            (f"int4, blocks of 32, {name} in int8", "int4", replace(plain4, int4_keep=(name,)))
            for name in BLOCK_LINEARS
        ),
        ("int4, blocks of 64", "int4", replace(plain4, int4_block=64)),
        ("int4, blocks of 64, attn.qkv in int8", "int4", replace(OrtCpu(), int4_block=64)),
        ("int4, blocks of 128", "int4", replace(plain4, int4_block=128)),
        ("int4, blocks of 128, attn.qkv in int8 (default)", "int4", OrtCpu()),
    ]
    return found


def _windows(text: Path, number: int, length: int) -> list[list[int]]:
    content = text.read_bytes()
    starts = np.linspace(0, len(content) - length, number).astype(int)
    return [list(content[start : start + length]) for start in starts]


def _logits(
    folder: Path, config: AndreaConfig, precision: OrtPrecision, recipe: OrtCpu, windows: list[list[int]]
) -> tuple[Logits, Logits]:
    """Logits as they are in use, ``[windows, length / 2 + 1, V]``: half a window as prompt, then step by step.

    And after prompts of every window's first tokens, ``[windows², V]``.
    """
    derive_ort_cpu(folder / "model.onnx", config, precision=precision, options=recipe, folder=folder)
    found, after_prompts = [], []
    library = None if precision == "fp32" else build_cpu_library(folder / "cache").library
    opened = open_shared(folder, files_of(precision), config, num_usable_cores(), library=library)
    with closing(opened) as decoder:
        for window in windows:
            half = len(window) // 2
            with closing(decoder.begin([window[:half]], len(window))) as generation:
                rows = [generation.logits_BV[0].copy()]
                rows += [generation.step([token])[0].copy() for token in window[half:]]
            found.append(np.stack(rows))
            lengths = np.linspace(1, len(window), len(windows)).astype(int)
            for length in lengths:
                with closing(decoder.begin([window[:length]], len(window))) as generation:
                    after_prompts.append(generation.logits_BV[0].copy())
    return np.stack(found), np.stack(after_prompts)


def _row(
    label: str, measured: tuple[Logits, Logits], reference: tuple[Logits, Logits], windows: list[list[int]]
) -> dict[str, Any]:
    (found, found_prompts), (exact, exact_prompts) = measured, reference
    vocabulary = exact.shape[-1]
    got = agreement(exact.reshape(-1, vocabulary), found.reshape(-1, vocabulary))
    shifted = found - found.max(axis=-1, keepdims=True)
    log_q = (shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))[:, :-1]
    said = np.take_along_axis(log_q, np.array(windows)[:, -log_q.shape[1] :, None], axis=-1)
    return {
        "variant": label,
        "kl_mean": got.kl_mean,
        "kl_max": got.kl_max,
        "top1": got.top1,
        "kl_after_prompts": agreement(exact_prompts, found_prompts).kl_mean,
        "perplexity": math.exp(-float(said.mean())),
    }


def table_of(rows: list[dict[str, Any]]) -> list[str]:
    """The rows as the lines of a Markdown table."""
    lines = ["| variant | KL mean, nats | KL max | same top-1 | perplexity | after prompts alone: KL mean |"]
    lines += ["|---|---|---|---|---|---|"]
    lines += [
        f"| {row['variant']} | {row['kl_mean']:.2e} | {row['kl_max']:.2e} | {row['top1']:.2%} | "
        f"{row['perplexity']:.4f} | {row['kl_after_prompts']:.2e} |"
        for row in rows
    ]
    return lines
