"""What int8 and int4 cost on a trained model and real text, variant by variant and layer by layer.

    python scripts/measure_quantization.py CHECKPOINT TEXT [--output docs/measurements/quantization]

For each variant of the CPU graphs: KL(fp32 ‖ variant), the share of positions with the same likeliest token, and the
perplexity, on windows of the text as byte tokens, half of each as prompt and half step by step, as in use; and KL after
prompts alone, of as many lengths as there are windows, for the tokens of one prompt share a range. Among the variants,
for each linear layer of every block by name, is the one where it alone is kept one precision higher. A layer is
sensitive if that takes away more of the KL than its share of the weights.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import checkout  # noqa: F401
import numpy as np
import numpy.typing as npt
from measure.processor import processor_facts

from andrea_export.core.precision import OrtPrecision
from andrea_export.graph.canonical.export import export_canonical
from andrea_export.runtime.cores import num_usable_cores
from andrea_export.runtime.open import open_shared
from andrea_export.targets.ort_cpu.derive import derive_ort_cpu
from andrea_export.targets.ort_cpu.files import files_of
from andrea_export.targets.ort_cpu.options import OrtCpu
from andrea_export.targets.ort_cpu.passes.linear_layers import BLOCK_LINEARS
from andrea_export.targets.ort_cpu.validation import agreement
from andrea_export.weights.load import load_model
from andrea_model.config import AndreaConfig

Logits = npt.NDArray[Any]


def main() -> None:
    """Measures, prints a Markdown table, writes JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    loaded = load_model(preset=None, checkpoint=options.checkpoint, seed=0)
    windows = _windows(options.text, options.windows, options.length)
    with tempfile.TemporaryDirectory(prefix="andrea-") as name:
        folder = Path(name)
        export_canonical(loaded, folder)
        exact = _logits(folder, loaded.config, "fp32", OrtCpu(), windows)
        rows = [
            _row(label, *_logits(folder, loaded.config, precision, recipe, windows), *exact, windows)
            for label, precision, recipe in _variants(loaded.config.n_layer)
        ]
    print("\n".join(_table(rows)))
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        document: dict[str, Any] = {
            "checkpoint": str(loaded.origin),
            "machine": processor_facts(),
            "text": options.text.name,
            "windows": options.windows,
            "length": options.length,
            "rows": rows,
        }
        options.output.with_suffix(".json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        head = (
            "# What int8 and int4 cost\n\nMade by `scripts/measure_quantization.py`; do not edit. "
            f"{loaded.origin}, {options.text.name}: {options.windows} windows of {options.length} byte tokens, half of "
            "each as prompt, half step by step, and prompts of as many lengths alone; against the fp32 graph. Kernels "
            f"differ in how they round; these are those of {document['machine']['cpu']} "
            f"({document['machine']['flags']}).\n\n"
        )
        options.output.with_suffix(".md").write_text(head + "\n".join(_table(rows)) + "\n", encoding="utf-8")


def _variants(num_blocks: int) -> list[tuple[str, OrtPrecision, OrtCpu]]:
    plain4 = OrtCpu(int4_block=32, int4_keep=())
    plain8 = OrtCpu(int8_keep=(), int8_scaled_rows=())
    blocks = [f"blocks.{block}" for block in range(num_blocks)]
    found: list[tuple[str, OrtPrecision, OrtCpu]] = [
        ("fp32", "fp32", OrtCpu()),
        ("int8, blocks.0 in fp32, tokens of one size in mlp.proj (default)", "int8", OrtCpu()),
        *(
            (f"int8, blocks.0 in fp32, tokens of one size {where}", "int8", OrtCpu(int8_scaled_rows=names))
            for where, names in (
                ("in attn.proj", ("attn.proj",)),
                ("in attn.proj and mlp.proj", ("attn.proj", "mlp.proj")),
                ("everywhere", BLOCK_LINEARS),
            )
        ),
        ("int8, no block in fp32, tokens of one size in mlp.proj", "int8", OrtCpu(int8_keep=())),
        ("int8", "int8", plain8),
        *((f"int8, {name} in fp32", "int8", replace(plain8, int8_keep=(name,))) for name in (*BLOCK_LINEARS, *blocks)),
        ("int8, block-wise", "int8", replace(plain8, int8_decode="blockwise")),
        ("int8, block-wise, otherwise as by default", "int8", OrtCpu(int8_decode="blockwise")),
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
    with closing(open_shared(folder, files_of(precision, recipe.int8_decode), config, num_usable_cores())) as decoder:
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
    label: str, found: Logits, found_prompts: Logits, exact: Logits, exact_prompts: Logits, windows: list[list[int]]
) -> dict[str, Any]:
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


def _table(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| variant | KL mean, nats | KL max | same top-1 | perplexity | after prompts alone: KL mean |"]
    lines += ["|---|---|---|---|---|---|"]
    lines += [
        f"| {row['variant']} | {row['kl_mean']:.2e} | {row['kl_max']:.2e} | {row['top1']:.2%} | "
        f"{row['perplexity']:.4f} | {row['kl_after_prompts']:.2e} |"
        for row in rows
    ]
    return lines


if __name__ == "__main__":
    main()
