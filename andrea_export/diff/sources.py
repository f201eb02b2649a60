"""What REFERENCE and CANDIDATE can be, and how each is recognised: by its content, never by its name.

FILE            a checkpoint (torch; fp64 as the reference, fp32 as the candidate), an ONNX file, a recorded trace
FILE#PRECISION  a checkpoint in torch in fp64, fp32, tf32 (emulated), fp16 or bf16
DIR             a bundle: its ONNX file
DIR#ARTIFACT    ``onnx``, ``onnx-fp16`` (the graph its fp16 engines are built from), or an engine: ``tensorrt-rtx-fp16``
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from andrea_export.backends import engine_backend
from andrea_export.backends.base import Session
from andrea_export.backends.onnxruntime import OnnxSession, onnxruntime_version, provider_availability
from andrea_export.bundle import Bundle, EngineEntry, open_bundle
from andrea_export.checkpoint import WeightsOrigin, load_model, read_header, sha256_of
from andrea_export.diff.cases import Case
from andrea_export.diff.runs import LayerRun
from andrea_export.diff.trace_file import TraceFile, is_trace
from andrea_export.dtypes import DTYPES, dtype_from_onnx
from andrea_export.errors import BackendUnavailable, ExportError, MismatchError, UsageError, first_line
from andrea_export.precision import JUDGED, PRECISIONS, Precision
from andrea_export.recipe import Profile
from andrea_model.config import AndreaConfig

if TYPE_CHECKING:
    from andrea_model.model import Andrea

_TORCH_PRECISIONS = ("fp64", *JUDGED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a source is, as a report states it."""

    name: str
    """``torch-fp64``, ``onnxruntime-cpu``, ``tensorrt-rtx-fp16``; a trace has the name of what was recorded."""
    kind: str
    precision: str
    config: AndreaConfig
    weights: str
    """Where the weights came from, in words."""
    origin: str
    """The same as one key: the checkpoint's sha256, or the seed and preset."""
    provenance: Mapping[str, str]


class Source(Protocol):
    """Something that can be compared."""

    identity: Identity
    shows_layers: bool
    """False where only the graph's outputs can be had: the rest is fused away."""
    facts: Mapping[str, object]
    """What else is known of it, for the report."""
    profile: Profile | None
    """The shapes it can run, where it cannot run all."""

    def layers(self, cases: Sequence[Case]) -> LayerRun:
        """A run over the cases. Raises: BackendUnavailable, RunError, TraceError."""
        ...

    def session(self) -> Session | None:
        """The whole model as it ships; None for a trace, which cannot be run. Raises: BackendUnavailable, RunError."""
        ...

    def weights(self) -> Andrea | None:
        """The torch model with the source's weights, from which budgets derive; None where there is none."""
        ...

    def recorded(self) -> TraceFile | None:
        """The trace, if it is one."""
        ...


class TorchSource:
    """The torch model with one checkpoint's weights, in one precision."""

    shows_layers = True

    def __init__(self, model: Andrea, origin: WeightsOrigin, *, precision: str, provenance: Mapping[str, str]) -> None:
        self._model = model
        self.facts: Mapping[str, object] = {}
        self.profile: Profile | None = None
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
        """See ``Source``."""
        from andrea_export.diff.torch_run import TorchRun

        return TorchRun(self._model, cases, precision=self.identity.precision)

    def session(self) -> Session:
        """See ``Source``."""
        from andrea_export.backends.torch_reference import TorchSession

        return TorchSession(self._model, precision=self.identity.precision)

    def weights(self) -> Andrea:
        """See ``Source``."""
        return self._model

    def recorded(self) -> None:
        """It is no trace."""


class OnnxSource:
    """One ONNX file with the project's names, on one provider of onnxruntime."""

    shows_layers = True

    def __init__(
        self,
        path: Path,
        config: AndreaConfig,
        origin: WeightsOrigin,
        *,
        precision: Precision,
        name: str,
        provenance: Mapping[str, str],
        provider: str = "cpu",
        derive: Callable[[], Path] | None = None,
    ) -> None:
        self._path = path
        self._derive = derive
        self._config = config
        self._precision = precision
        self._provider = provider
        self.facts: Mapping[str, object] = {}
        self.profile: Profile | None = None
        self.identity = Identity(
            name=name,
            kind="onnx",
            precision=precision.name,
            config=config,
            weights=str(origin),
            origin=origin_key(origin),
            provenance=provenance,
        )

    def layers(self, cases: Sequence[Case]) -> LayerRun:
        """See ``Source``."""
        from andrea_export.diff.onnx_run import OnnxRun

        self._check_available()
        return OnnxRun(
            self._file(),
            self._config,
            cases,
            precision=self._precision,
            provider=self._provider,
            name=self.identity.name,
        )

    def session(self) -> Session:
        """See ``Source``."""
        self._check_available()
        return OnnxSession(self._file(), self._provider, name=self.identity.name)

    def weights(self) -> Andrea | None:
        """The fp32 file's own weights; None for a file whose precision has rounded them."""
        from andrea_export.weights import model_from_onnx

        return model_from_onnx(self._file(), self._config) if self._precision.name == "fp32" else None

    def recorded(self) -> None:
        """It is no trace."""

    def _file(self) -> Path:
        """The file; one that is to be derived is derived when it is first wanted. Raises: ExportError."""
        if self._derive is not None:
            self._path, self._derive = self._derive(), None
        return self._path

    def _check_available(self) -> None:
        availability = provider_availability(self._provider)
        if not availability.available:
            raise BackendUnavailable(availability.reason, hint=availability.hint)
        if self._provider == "cpu" and self._precision.name == "bf16":
            raise BackendUnavailable("onnxruntime's CPU provider has no bf16 kernels")


class EngineSource:
    """One engine of a bundle."""

    shows_layers = False

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
        """See ``Source``."""
        from andrea_export.diff.session_run import SessionRun

        cache_dtype = DTYPES[PRECISIONS[self._entry.facts.precision].cache_dtype].numpy
        with self.session() as session:
            return SessionRun(session, self._config, cases, cache_dtype=cache_dtype)

    def check_runnable(self) -> None:
        """Raises BackendUnavailable where the engine cannot be run on this machine."""
        backend = engine_backend(self._entry.facts.target)
        runnable = backend.can_run()
        if not runnable.available:
            raise BackendUnavailable(runnable.reason, hint=runnable.hint)

    def session(self) -> Session:
        """See ``Source``."""
        self.check_runnable()
        return engine_backend(self._entry.facts.target).open(self._path)

    def weights(self) -> None:
        """An engine's weights are its own."""

    def recorded(self) -> None:
        """It is no trace."""


class TraceSource:
    """A recorded run."""

    def __init__(self, trace: TraceFile) -> None:
        header = trace.header
        self._trace = trace
        self.facts: Mapping[str, object] = {}
        self.profile: Profile | None = None
        self.shows_layers = len(header.layers) > 2 * header.config.n_layer + 1  # more than logits, keys and values
        self.identity = Identity(
            name=header.name,
            kind="trace",
            precision=header.precision,
            config=header.config,
            weights=header.weights,
            origin=header.origin,
            provenance={
                **header.provenance,
                "trace": trace.path.name,
                "trace_sha256": sha256_of(trace.path),
                "recorded_by": f"andrea-export {header.andrea_export}",
            },
        )

    def layers(self, cases: Sequence[Case]) -> LayerRun:
        """See ``Source``."""
        from andrea_export.diff.session_run import TraceRun

        return TraceRun(self._trace)

    def session(self) -> None:
        """A trace cannot be run."""

    def weights(self) -> None:
        """A trace holds none."""

    def recorded(self) -> TraceFile:
        """See ``Source``."""
        return self._trace


class Sources:
    """Opens sources by their specification; what they hold on disk is removed at the end."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def open(self, specification: str, *, precision: str) -> Source:
        """The source a specification names; ``precision`` is that of a checkpoint which names none.

        Raises: UsageError (no such thing), and the reader's own error for what is damaged.
        """
        path, artifact = _split(specification)
        if path.is_dir():
            return self._from_bundle(open_bundle(path), artifact or "onnx")
        with path.open("rb") as file:
            head = file.read(16)
        if not head:
            raise UsageError(f"{path} is empty", hint=_HINT)
        if head[8:9] == b"{" and is_trace(path):
            _no_artifact(path, artifact, "a trace")
            trace = TraceFile(path)
            trace.verify()
            return TraceSource(trace)
        if head[8:9] == b"{":
            return _from_checkpoint(path, artifact or precision)
        if path.suffix == ".safetensors":
            read_header(path)  # says how it is damaged
        _no_artifact(path, artifact, "an ONNX file")
        return onnx_source(path)

    def mixed(self, model: Path, config: AndreaConfig, origin: WeightsOrigin, precision: Precision) -> OnnxSource:
        """The graph that engines of a precision are built from, derived from a canonical file, on the CPU."""
        return OnnxSource(
            model,
            config,
            origin,
            precision=precision,
            name=f"onnxruntime-cpu-{precision.name}",
            provenance={"derived": "the graph its engines are built from", "onnxruntime": onnxruntime_version()},
            derive=lambda: self._derived(model, precision),
        )

    def _derived(self, model: Path, precision: Precision) -> Path:
        from andrea_export.backends.tensorrt_model import derive_engine_model
        from andrea_export.canonical import load_graph

        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="andrea-")
        folder = Path(self._folder.name) / precision.name
        folder.mkdir()
        load_graph(model)  # says what is wrong with a file that holds none
        try:
            derived = derive_engine_model(
                model,
                precision=precision,
                plugin=False,
                parser_knows_attention=True,
                folder=folder,
                self_contained=True,
            )
        except (OSError, ValueError, TypeError) as error:  # weights that are missing or short end in one of these
            raise ExportError(f"no {precision.name} graph can be derived: {first_line(error)}") from None
        return derived.path

    def _from_bundle(self, bundle: Bundle, artifact: str) -> Source:
        engines = {Path(entry.file).stem: entry for entry in bundle.manifest.engines}
        if artifact == "onnx":
            return onnx_source(bundle.model)
        if artifact in engines:
            entry = engines[artifact]
            return EngineSource(
                bundle.path / entry.file, entry, bundle.config, bundle.origin, profile=bundle.manifest.recipe.profile
            )
        mixed = [f"onnx-{name}" for name in PRECISIONS if name != "fp32"]
        if artifact in mixed:
            precision = next(row for name, row in PRECISIONS.items() if f"onnx-{name}" == artifact)
            return self.mixed(bundle.model, bundle.config, bundle.origin, precision)
        raise UsageError(
            f"bundle {bundle.path} has no '{artifact}'", hint=f"it has {', '.join(['onnx', *mixed, *engines])}"
        )


_HINT = "give a checkpoint, an ONNX file, a bundle (DIR or DIR#tensorrt-rtx-fp16) or a recorded trace"


def onnx_source(path: Path, *, provider: str = "cpu") -> OnnxSource:
    """An ONNX file as a source; its metadata says what model it is.

    Raises: UsageError for a file that is no ONNX file of this project.
    """
    from andrea_export.canonical import load_graph, read_canonical_info

    try:
        graph = load_graph(path).graph
    except ExportError as error:
        raise UsageError(f"{path} is none of what can be compared: {error}", hint=_HINT) from None
    info = read_canonical_info(path)
    if info is None:
        raise MismatchError(
            f"{path} does not say what model it is: it has no andrea.config in its metadata",
            hint="compare an ONNX file that andrea-export wrote",
        )
    caches = [entry for entry in graph.input if entry.name.startswith("past_key_values.")]
    dtype = dtype_from_onnx(caches[0].type.tensor_type.elem_type).name if caches else "fp32"
    precision = next((row for row in PRECISIONS.values() if row.cache_dtype == dtype), PRECISIONS["fp32"])
    return OnnxSource(
        path,
        info.config,
        info.origin,
        precision=precision,
        provider=provider,
        name=f"onnxruntime-{provider}{'' if precision.name == 'fp32' else f'-{precision.name}'}",
        provenance={"file": path.name, "sha256": sha256_of(path), "onnxruntime": onnxruntime_version()},
    )


def same_model(reference: Identity, candidate: Identity) -> None:
    """Raises MismatchError naming every difference of shape, or a trace of other weights."""
    ours, theirs = reference.config, candidate.config
    different = [
        f"{key} {getattr(theirs, key)} (reference: {getattr(ours, key)})"
        for key in AndreaConfig.__dataclass_fields__
        if getattr(ours, key) != getattr(theirs, key)
    ]
    if different:
        raise MismatchError(
            f"candidate {candidate.name} is of another architecture: {', '.join(different)}",
            hint="compare two files of one model",
        )
    if "trace" in (reference.kind, candidate.kind) and reference.origin != candidate.origin:
        raise MismatchError(
            f"the trace is of another model: {candidate.name} has {candidate.weights}, "
            f"{reference.name} has {reference.weights}",
            hint="record it again from the model it is compared with",
        )


def origin_key(origin: WeightsOrigin) -> str:
    """One key for where weights came from, whatever the checkpoint's file is called."""
    return origin.checkpoint_sha256 or f"seed {origin.seed} of {origin.preset}"


def cache_dtype_of(precision: str) -> np.dtype[Any]:
    """The type of a source's past and present keys and values."""
    return DTYPES["fp64" if precision == "fp64" else JUDGED[precision].cache_dtype].numpy


def _from_checkpoint(path: Path, precision: str) -> TorchSource:
    import importlib.metadata

    if precision not in _TORCH_PRECISIONS:
        raise UsageError(
            f"{path}: unknown precision '{precision}'", hint=f"torch runs it in {', '.join(_TORCH_PRECISIONS)}"
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


def _split(specification: str) -> tuple[Path, str]:
    """(path, what is named after the last ``#``); a path that exists as it is has nothing named."""
    whole = Path(specification)
    if whole.exists():
        return whole, ""
    name, mark, artifact = specification.rpartition("#")
    path = Path(name) if mark else whole
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder", hint=_HINT)
    return path, artifact


def _no_artifact(path: Path, artifact: str, kind: str) -> None:
    if artifact:
        raise UsageError(f"{path} is {kind}, which has no '#{artifact}'", hint=_HINT)
