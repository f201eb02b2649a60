"""andrea-export's own runtime on its bundle."""

import time
from pathlib import Path
from typing import Any

import onnxruntime

import andrea_export
from andrea_export.runtime import Model

VERSIONS = {"andrea-export": andrea_export.__version__, "onnxruntime": onnxruntime.__version__}


class Andrea:
    """A loaded bundle."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def prefill(self, rows: list[list[int]]) -> None:
        """Logits after each row."""
        self.model.prefill(rows)

    def logits(self, rows: list[list[int]]) -> Any:
        return self.model.prefill(rows)

    def decode(self, prompt: list[int], number: int) -> tuple[float, float]:
        """Greedy."""
        stamps = [time.perf_counter() for _ in self.model.generate(prompt, max_new_tokens=number)]
        return stamps[0], stamps[-1]


def load(variant: str, folder: Path, threads: int) -> Andrea:
    """The bundle in the precision that ``variant`` names."""
    return Andrea(
        andrea_export.load(folder / "bundle", provider="cpu", precision=variant, num_threads=threads, verify=False)
    )
