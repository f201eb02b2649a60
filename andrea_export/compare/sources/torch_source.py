"""A checkpoint, run by torch."""

import importlib.metadata
from collections.abc import Mapping, Sequence
from pathlib import Path

from andrea_export.compare.inputs import Case
from andrea_export.compare.runs import LayerRun
from andrea_export.compare.sources.base import Identity, Source, origin_key
from andrea_export.compare.torch_run import TorchRun
from andrea_export.core.errors import UsageError
from andrea_export.core.precision import PRECISIONS
from andrea_export.sessions.base import Session
from andrea_export.sessions.torch_reference import TorchSession
from andrea_export.weights.load import load_model
from andrea_export.weights.origin import WeightsOrigin
from andrea_model.model import Andrea

TORCH_PRECISIONS = tuple(name for name, row in PRECISIONS.items() if row.is_truth or row.has_budgets)


class TorchSource(Source):
    """The torch model with one checkpoint's weights, in one precision."""

    reruns_as_shipped = True

    def __init__(self, model: Andrea, origin: WeightsOrigin, *, precision: str, provenance: Mapping[str, str]) -> None:
        self._model = model
        self.is_truth = PRECISIONS[precision].is_truth
        self.identity = Identity(
            name=f"torch-{precision}",
            kind="checkpoint",
            precision=precision,
            config=model.config,
            weights=str(origin),
            origin=origin_key(origin),
            provenance=provenance,
        )

    def layers(self, cases: Sequence[Case]) -> LayerRun:
        return TorchRun(self._model, cases, precision=self.identity.precision)

    def session(self) -> Session:
        return TorchSession(self._model, precision=self.identity.precision)

    def weights(self) -> Andrea:
        return self._model


def torch_source(path: Path, precision: str) -> TorchSource:
    """A checkpoint as a source. Raises: UsageError for a precision torch does not run it in, CheckpointError."""
    if precision not in TORCH_PRECISIONS:
        raise UsageError(
            f"{path}: unknown precision '{precision}'", hint=f"torch runs it in {', '.join(TORCH_PRECISIONS)}"
        )
    loaded = load_model(preset=None, checkpoint=path, seed=0)
    return TorchSource(
        loaded.model,
        loaded.origin,
        precision=precision,
        provenance={
            "file": path.name,
            "sha256": str(loaded.origin.checkpoint_sha256),
            "torch": importlib.metadata.version("torch"),
        },
    )
