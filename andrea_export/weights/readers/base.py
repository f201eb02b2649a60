"""What a reader of checkpoints does: a family's names, shapes and orientation in, the model's out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from andrea_model.config import AndreaConfig

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointHeader:
    """What a checkpoint says it holds, told without reading a weight."""

    tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    """Name in the file → (element type, shape), in the file's order."""
    metadata: Mapping[str, str]
    config: AndreaConfig | None
    """The shape that the file states; None where it states none."""
    untrained: str | None = None
    """The file's own words where it calls its weights an initialisation; None where it does not."""


class CheckpointReader(Protocol):
    """One family of checkpoints."""

    def read_header(self, path: Path) -> CheckpointHeader:
        """What the file says it holds. Raises CheckpointError for one that is damaged."""

    def check(self, header: CheckpointHeader, config: AndreaConfig, path: Path) -> None:
        """Holds the file's names, count and shapes against the model's, before memory is taken for them.

        Raises: one CheckpointError that names everything missing, unexpected, misshapen or of another type.
        """

    def tensors(self, path: Path, config: AndreaConfig) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter once, under the model's name and in the model's orientation (``[in, out]``), in any type."""


def listed(head: str, problems: Sequence[str], limit: int = 24) -> str:
    """Every problem in one line, a very long list cut and counted."""
    shown = "; ".join(problems[:limit])
    more = f"; and {len(problems) - limit} more" if len(problems) > limit else ""
    return f"{head}, {len(problems)} problem{'s' if len(problems) != 1 else ''}: {shown}{more}"
