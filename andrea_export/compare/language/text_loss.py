"""How well a model predicts a text, alone: the figure that shows a wrong order of tensors, or a wrong tokenizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from andrea_model.model import Andrea


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLoss:
    """The loss of a text's tokens after the first."""

    num_tokens: int
    nats: float
    """A token, on average."""
    bound: float
    """log V: the loss of a model that knows nothing, to which every token is as likely."""

    @property
    def perplexity(self) -> float:
        """e to the loss."""
        return math.exp(self.nats) if self.nats < 700 else math.inf

    @property
    def verdict(self) -> str:
        """What the figure says of how the weights were read."""
        if self.nats >= self.bound:
            return "no better than a model that knows nothing: the order, the orientation or the tokenizer is wrong"
        return "better than a model that knows nothing"


def text_loss(model: Andrea, tokens: Sequence[int]) -> TextLoss:
    """The loss of a text that fits the context and one more; in fp32, by torch."""
    import torch
    import torch.nn.functional as F

    ids = torch.tensor([tokens])
    with torch.inference_mode():
        logits, _ = model(ids[:, :-1])
        loss = F.cross_entropy(logits[0].double(), ids[0, 1:])
    return TextLoss(num_tokens=len(tokens) - 1, nats=loss.item(), bound=math.log(model.config.vocab_size))
