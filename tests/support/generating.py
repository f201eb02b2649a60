"""What the tests of generation share: a prompt, a way to open a bundle, and torch's own greedy text."""

from __future__ import annotations

from pathlib import Path

import torch

import andrea_export
from andrea_export.runtime import Model
from andrea_export.weights.load import LoadedModel

PRECISIONS = ("fp32", "int8", "int4")
PROMPT = (5, 17, 42, 300, 8, 0, 320, 99)


def opened(bundle: Path, precision: str = "fp32") -> Model:
    return andrea_export.load(bundle, provider="cpu", precision=precision)


def torch_greedy(loaded: LoadedModel, prompt: tuple[int, ...], number: int) -> list[int]:
    tokens: list[int] = []
    new, past = list(prompt), None
    with torch.inference_mode():
        for _ in range(number):
            logits, past = loaded.model(torch.tensor([new]), past=past)
            new = [int(logits[0, -1].argmax())]
            tokens += new
    return tokens
