"""A bundle's engines as sources: each itself, and the graph that those of one precision are built from."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from andrea_export.compare.inputs import Case
from andrea_export.compare.runs import LayerRun, SessionRun, outputs_alone
from andrea_export.compare.sources.base import Identity, Source, origin_key
from andrea_export.compare.sources.onnx_source import OnnxSource
from andrea_export.core.dtypes import DTYPES
from andrea_export.core.errors import BackendUnavailable, ExportError, first_line
from andrea_export.core.precision import PRECISIONS, Precision
from andrea_export.core.profile import Profile
from andrea_export.graph.canonical.metadata import load_graph
from andrea_export.sessions.base import Session
from andrea_export.sessions.onnxruntime import onnxruntime_version
from andrea_export.targets.tensorrt.facts import EngineEntry
from andrea_export.targets.tensorrt.flavours import engine_backend
from andrea_export.targets.tensorrt.model import derive_engine_model
from andrea_export.weights.origin import WeightsOrigin
from andrea_model.config import AndreaConfig


class EngineSource(Source):
    """One engine of a bundle: it shows its outputs alone, for its layers are fused."""

    def __init__(
        self, path: Path, entry: EngineEntry, config: AndreaConfig, origin: WeightsOrigin, *, profile: Profile
    ) -> None:
        facts = entry.facts
        self.profile: Profile | None = profile
        self._path = path
        self._entry = entry
        self._config = config
        self.identity = Identity(
            name=f"{facts.target}-{facts.precision}{'-native' if entry.native_twin else ''}",
            kind="engine",
            # An fp32 engine that may round its operands to TF32 is judged as one that does.
            precision="tf32" if facts.tf32 and facts.precision == "fp32" else facts.precision,
            config=config,
            weights=str(origin),
            origin=origin_key(origin),
            provenance={"tensorrt": facts.tensorrt_version},
        )
        self.facts: Mapping[str, object] = {
            "plugin_layers": facts.num_plugin_layers,
            "gelu_implementations": dict(facts.gelu_implementations),
            "tf32": facts.tf32,
            "tensorrt_version": facts.tensorrt_version,
        }

    def layers(self, cases: Sequence[Case]) -> LayerRun:
        cache_dtype = DTYPES[PRECISIONS[self._entry.facts.precision].cache_dtype].numpy
        with self.session() as session:
            visible = outputs_alone(self._config)
            return SessionRun(session, self._config, cases, cache_dtype=cache_dtype, visible=visible)

    def check_runnable(self) -> None:
        """Raises BackendUnavailable where the engine cannot be run on this machine."""
        backend = engine_backend(self._entry.facts.target)
        runnable = backend.can_run()
        if not runnable.available:
            raise BackendUnavailable(runnable.reason, hint=runnable.hint)

    def session(self) -> Session:
        self.check_runnable()
        return engine_backend(self._entry.facts.target).open(self._path)


def mixed_source(
    model: Path, config: AndreaConfig, origin: WeightsOrigin, precision: Precision, *, folder: Path
) -> OnnxSource:
    """The graph that engines of a precision are built from, on the CPU; derived into ``folder`` when it is wanted."""
    return OnnxSource(
        model,
        config,
        origin,
        precision=precision,
        name=f"onnxruntime-cpu-{precision.name}",
        provenance={"derived": "the graph its engines are built from", "onnxruntime": onnxruntime_version()},
        derive=lambda: _derived(model, precision, folder / precision.name),
    )


def _derived(model: Path, precision: Precision, folder: Path) -> Path:
    folder.mkdir()
    load_graph(model)  # says what is wrong with a file that holds none
    try:
        derived = derive_engine_model(
            model, precision=precision, plugin=False, parser_knows_attention=True, folder=folder, self_contained=True
        )
    except (OSError, ValueError, TypeError) as error:  # weights that are missing or short end in one of these
        raise ExportError(f"no {precision.name} graph can be derived: {first_line(error)}") from None
    return derived.path
