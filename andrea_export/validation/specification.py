"""What REFERENCE and CANDIDATE can be, and how each is recognised: by its content, never by its name.

FILE            a checkpoint (torch; fp64 as the reference, fp32 as the candidate), an ONNX file, a recorded trace
FILE#PRECISION  a checkpoint in torch in fp64, fp32, tf32 (emulated), fp16 or bf16
DIR             a bundle: its ONNX file
DIR#ARTIFACT    ``onnx``, ``onnx-fp16`` (the graph its fp16 engines are built from), or an engine: ``tensorrt-rtx-fp16``
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from andrea_export.bundle.manifest import Bundle, open_bundle
from andrea_export.compare.sources.base import WHAT_CAN_BE_COMPARED, Source
from andrea_export.compare.sources.onnx_source import for_the_cpu_kernels, onnx_source
from andrea_export.compare.sources.torch_source import torch_source
from andrea_export.compare.sources.trace_source import TraceSource
from andrea_export.compare.trace_file import TraceFile
from andrea_export.core.errors import UsageError
from andrea_export.core.precision import ENGINE_PRECISIONS, PRECISIONS
from andrea_export.targets.tensorrt.source import EngineSource, mixed_source
from andrea_export.weights.readers.andrea import AndreaReader
from andrea_export.weights.readers.recognise import recognise


class Sources(ExitStack):
    """Opens sources by their specification; what they hold on disk is removed at the end."""

    def open(self, specification: str, *, precision: str) -> Source:
        """The source a specification names; ``precision`` is that of a checkpoint which names none.

        Raises: UsageError (no such thing), and the reader's own error for what is damaged.
        """
        path, artifact = _split(specification)
        kind = recognise(path)
        if kind == "folder":
            return self._from_bundle(open_bundle(path), artifact or "onnx")
        if kind == "special":
            raise UsageError(f"{path} is neither a file nor a folder", hint=WHAT_CAN_BE_COMPARED)
        if kind == "empty":
            raise UsageError(f"{path} is empty", hint=WHAT_CAN_BE_COMPARED)
        if kind == "trace":
            _no_artifact(path, artifact, "a trace")
            trace = TraceFile(path)
            trace.verify()
            return TraceSource(trace)
        if kind == "checkpoint":
            return torch_source(path, artifact or precision)
        if path.suffix == ".safetensors":
            AndreaReader().read_header(path)  # says how it is damaged
        _no_artifact(path, artifact, "an ONNX file")
        return onnx_source(path)

    def _from_bundle(self, bundle: Bundle, artifact: str) -> Source:
        engines = {Path(entry.file).stem: entry for entry in bundle.manifest.engines}
        if artifact == "onnx":
            return onnx_source(bundle.model)
        if artifact in engines:
            entry = engines[artifact]
            return EngineSource(
                bundle.path / entry.file, entry, bundle.config, bundle.origin, profile=bundle.manifest.recipe.profile
            )
        mixed = [f"onnx-{name}" for name in ENGINE_PRECISIONS if name != "fp32"]
        if artifact in mixed:
            precision = PRECISIONS[artifact.removeprefix("onnx-")]
            scratch = self.enter_context(tempfile.TemporaryDirectory(prefix="andrea-"))
            return mixed_source(bundle.model, bundle.config, bundle.origin, precision, folder=Path(scratch))
        graphs = {name for own in bundle.contents.ort_cpu.values() for name in (own.decode, own.prefill)}
        if f"{artifact}.onnx" in graphs:
            raise for_the_cpu_kernels(bundle.path / f"{artifact}.onnx")
        raise UsageError(
            f"bundle {bundle.path} has no '{artifact}'", hint=f"it has {', '.join(['onnx', *mixed, *engines])}"
        )


def _split(specification: str) -> tuple[Path, str]:
    """(path, what is named after the last ``#``); a path that exists as it is has nothing named."""
    whole = Path(specification)
    if whole.exists():
        return whole, ""
    name, mark, artifact = specification.rpartition("#")
    path = Path(name) if mark else whole
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder", hint=WHAT_CAN_BE_COMPARED)
    return path, artifact


def _no_artifact(path: Path, artifact: str, kind: str) -> None:
    if artifact:
        raise UsageError(f"{path} is {kind}: '#{artifact}' names nothing in it", hint=WHAT_CAN_BE_COMPARED)
