"""An ONNX file, run by onnxruntime; it may be one that is only derived when it is first wanted."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from andrea_export.compare.inputs import Case
from andrea_export.compare.onnx_run import OnnxRun
from andrea_export.compare.runs import LayerRun
from andrea_export.compare.sources.base import WHAT_CAN_BE_COMPARED, Identity, Source, origin_key
from andrea_export.core.dtypes import dtype_from_onnx
from andrea_export.core.errors import BackendUnavailable, ExportError, MismatchError, UsageError
from andrea_export.core.hashing import sha256_of
from andrea_export.core.names import SEQLENS
from andrea_export.core.precision import ENGINE_PRECISIONS, PRECISIONS, Precision
from andrea_export.graph.canonical.metadata import load_graph, read_canonical_info
from andrea_export.graph.parameters import model_from_onnx
from andrea_export.sessions.base import Session
from andrea_export.sessions.onnxruntime import OnnxSession, onnxruntime_version, provider_availability
from andrea_export.weights.origin import WeightsOrigin
from andrea_model.config import AndreaConfig
from andrea_model.model import Andrea


class OnnxSource(Source):
    """One ONNX file with the project's names, on one provider of onnxruntime."""

    reruns_as_shipped = True

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
        self._check_available()
        return OnnxSession(self._file(), self._provider, name=self.identity.name)

    def weights(self) -> Andrea | None:
        """The fp32 file's own weights; None for a file whose precision has rounded them."""
        return model_from_onnx(self._file(), self._config) if self._precision.name == "fp32" else None

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


def onnx_source(path: Path, *, provider: str = "cpu") -> OnnxSource:
    """An ONNX file as a source; its metadata says what model it is.

    Raises: UsageError for a file that is not an ONNX file of this project, or a graph for onnxruntime's CPU kernels.
    """
    try:
        graph = load_graph(path).graph
    except ExportError as error:
        raise UsageError(f"{path} cannot be compared: {error}", hint=WHAT_CAN_BE_COMPARED) from None
    if any(entry.name == SEQLENS for entry in graph.input):
        raise for_the_cpu_kernels(path)
    info = read_canonical_info(path)
    if info is None:
        raise MismatchError(
            f"{path} does not say what model it is: it has no andrea.config in its metadata",
            hint="compare an ONNX file that andrea-export wrote",
        )
    caches = [entry for entry in graph.input if entry.name.startswith("past_key_values.")]
    dtype = dtype_from_onnx(caches[0].type.tensor_type.elem_type).name if caches else "fp32"
    precision = next(
        (PRECISIONS[name] for name in ENGINE_PRECISIONS if PRECISIONS[name].cache_dtype == dtype), PRECISIONS["fp32"]
    )
    return OnnxSource(
        path,
        info.config,
        info.origin,
        precision=precision,
        provider=provider,
        name=f"onnxruntime-{provider}{'' if precision.name == 'fp32' else f'-{precision.name}'}",
        provenance={"file": path.name, "sha256": sha256_of(path), "onnxruntime": onnxruntime_version()},
    )


def for_the_cpu_kernels(path: Path) -> UsageError:
    """Why ``diff`` does not take an ``ort-cpu`` graph: its cache is a buffer of the caller's."""
    return UsageError(
        f"{path} is a graph for onnxruntime's CPU kernels, which diff does not run",
        hint="`andrea-export validate` on its bundle compares it layer by layer with torch",
    )
