"""CTranslate2's Generator."""

import time
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np

VERSIONS = {"ctranslate2": ctranslate2.__version__}


class Generator:
    """A converted model; its tokens are strings."""

    def __init__(self, generator: ctranslate2.Generator) -> None:
        self.generator = generator

    def prefill(self, rows: list[list[int]]) -> None:
        """Generates one token: logits of the last position only."""
        self.generator.generate_batch(
            [_strings(row) for row in rows], max_length=1, include_prompt_in_result=False, max_batch_size=len(rows)
        )

    def logits(self, rows: list[list[int]]) -> Any:
        return np.array(self.generator.forward_batch([_strings(row) for row in rows]))[:, -1]

    def decode(self, prompt: list[int], number: int) -> tuple[float, float]:
        """Greedy, streamed."""
        stamps = []
        for _ in self.generator.generate_tokens(_strings(prompt), max_length=number, end_token=[]):
            stamps.append(time.perf_counter())
        return stamps[0], stamps[number - 1]


def load(variant: str, folder: Path, threads: int) -> Generator:
    """float32 or int8, converted once; int8 computes in int8 as well."""
    return Generator(
        ctranslate2.Generator(
            str(folder / f"ctranslate2-{variant}"),
            device="cpu",
            compute_type="float32" if variant == "fp32" else "int8",
            intra_threads=threads,
        )
    )


def convert(variant: str, folder: Path) -> None:
    """Writes the converted model."""
    converter = ctranslate2.converters.TransformersConverter(str(folder / "hf"))
    converter.convert(
        str(folder / f"ctranslate2-{variant}"), quantization="float32" if variant == "fp32" else "int8", force=True
    )


def _strings(row: list[int]) -> list[str]:
    return [f"t{token}" for token in row]
