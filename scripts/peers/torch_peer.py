"""transformers' GPT-2 in torch: eager, and compiled over a static cache."""

import time
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import GPT2LMHeadModel

VERSIONS = {"torch": torch.__version__, "transformers": transformers.__version__}


class Eager:
    """The model, eager."""

    def __init__(self, model: Any, compiled: bool) -> None:
        self.model, self.compiled = model, compiled

    @torch.inference_mode()
    def prefill(self, rows: list[list[int]]) -> None:
        """One forward pass; logits of the last position only."""
        self.model(input_ids=torch.tensor(rows), use_cache=True, logits_to_keep=1)

    @torch.inference_mode()
    def logits(self, rows: list[list[int]]) -> Any:
        return self.model(input_ids=torch.tensor(rows), logits_to_keep=1).logits[:, -1].numpy()

    @torch.inference_mode()
    def decode(self, prompt: list[int], number: int) -> tuple[float, float]:
        """Greedy by generate; the first token's time is that of a generate for one."""
        ids = torch.tensor([prompt])
        options: dict[str, Any] = {"cache_implementation": "static"} if self.compiled else {}
        seconds = []
        for count in (1, number):
            begin = time.perf_counter()
            self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                **options,
            )
            seconds.append(time.perf_counter() - begin)
        return seconds[0], seconds[1]


def load(variant: str, folder: Path, threads: int) -> Eager:
    """``eager`` or ``compiled``; fp32."""
    torch.set_num_threads(threads)
    model: Any = GPT2LMHeadModel.from_pretrained(folder / "hf")
    model.eval()
    compiled = variant == "compiled"
    if compiled:
        model.forward = torch.compile(model.forward, dynamic=True)
    return Eager(model, compiled)
