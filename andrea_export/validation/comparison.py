"""One comparison from beginning to end: what the verbs and ``validate`` call; what REFERENCE and CANDIDATE can be, and
how each is recognised: by its content, never by its name.

FILE            a checkpoint (torch; fp64 as the reference, fp32 as the candidate), an ONNX file, a recorded trace
FILE#PRECISION  a checkpoint, which may be a folder, in torch in fp64, fp32, tf32 (emulated), fp16 or bf16
DIR             a bundle: its ONNX file
DIR#ARTIFACT    ``onnx``, ``onnx-fp16`` (the graph its fp16 engines are built from), or an engine: ``tensorrt-rtx-fp16``
"""

import importlib.metadata
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from andrea_export.bundle.manifest import Bundle, open_bundle
from andrea_export.compare.compare import Compared, compare, language_rows
from andrea_export.compare.inputs import (
    BUILT_IN_TEXT,
    Inputs,
    built_in_tokens,
    cases_from_tokens,
    cases_within,
    text_tokens,
    tokens_from_file,
)
from andrea_export.compare.sources.base import WHAT_CAN_BE_COMPARED, Source, same_model
from andrea_export.compare.sources.onnx_source import for_the_cpu_kernels, onnx_source
from andrea_export.compare.sources.torch_source import torch_source
from andrea_export.compare.sources.trace_source import TraceSource
from andrea_export.compare.trace_file import TraceFile
from andrea_export.core.errors import MismatchError, UsageError
from andrea_export.core.names import layer_names
from andrea_export.core.precision import ENGINE_PRECISIONS, PRECISIONS
from andrea_export.core.profile import Profile
from andrea_export.core.progress import Progress
from andrea_export.judge.verdicts import Terms, judged
from andrea_export.report.schema import LanguageModelRow, Report
from andrea_export.sessions.onnxruntime import onnxruntime_version
from andrea_export.targets.tensorrt.source import EngineSource, mixed_source
from andrea_export.tokens.files import find_tokenizer
from andrea_export.tokens.tokenizer import BYTES, Tokenizer
from andrea_export.weights.readers import OPENERS, is_checkpoint_folder, open_checkpoint
from andrea_export.weights.readers.recognise import recognise
from andrea_model.config import AndreaConfig


def diff(
    reference: Source, candidates: Sequence[Source], inputs: Inputs, terms: Terms, *, progress: Progress
) -> Report:
    """The judged report on every candidate.

    Raises: MismatchError (nothing that can be compared), PolicyError (it names no layer), TraceError, and
    BackendUnavailable or RunError where the reference cannot be run.
    """
    config = reference.identity.config
    for candidate in candidates:
        same_model(reference.identity, candidate.identity)
    terms.policy.check_names(layer_names(config), ())
    compared = compare(reference, candidates, inputs, progress=progress)
    measured = [entry.source for entry in compared if entry.candidate.verdict != "not-measured"]
    rows = language_rows(reference, measured, inputs.text, progress=progress)
    return judged(report_of(reference, compared, inputs, tuple(rows)), terms)


def report_of(
    reference: Source, compared: Sequence[Compared], inputs: Inputs, language_model: tuple[LanguageModelRow, ...] = ()
) -> Report:
    """What was measured as a report that is not judged yet."""
    identity = reference.identity
    layers = tuple(row for entry in compared for row in entry.rows)
    return Report(
        reference={
            "name": identity.name,
            "kind": identity.kind,
            "precision": identity.precision,
            "weights": identity.weights,
            **identity.provenance,
        },
        inputs=inputs.as_mapping(),
        candidates=tuple(entry.candidate for entry in compared),
        checks=(),
        layers=layers,
        layer_order=tuple(layer_names(identity.config)),
        versions={"torch": importlib.metadata.version("torch"), "onnxruntime": onnxruntime_version()},
        language_model=language_model,
    )


def inputs_for(
    sources: Sequence[Source], config: AndreaConfig, *, file: Path | None, text: Path | None, language_model: bool
) -> Inputs:
    """The inputs of a comparison: those of a recorded trace, else the file's tokens, else seeded ones; and the text.

    Raises: UsageError for a file that holds no tokens, or is given beside a trace; MismatchError for two traces
    that were recorded on different inputs.
    """
    traces = [trace for source in sources if (trace := source.recording) is not None]
    if traces:
        if file is not None or text is not None:
            raise UsageError("a recorded trace brings its own inputs", hint="leave out --inputs and --text")
        first, *others = traces
        for other in others:
            same = all(other.header.sha256.get(name) == first.header.sha256[name] for name in first.header.sha256
                       if name.startswith("inputs/") or name == "text")  # fmt: skip
            if not same:
                raise MismatchError(
                    f"traces {first.path} and {other.path} were recorded on different inputs",
                    hint="record both with the same --inputs",
                )
        inputs = first.inputs
        return inputs if language_model else replace(inputs, text=())
    rows = tokens_from_file(file, config) if file is not None else None
    profile = next((source.profile for source in sources if source.profile is not None), Profile())
    cases = cases_from_tokens(rows) if rows is not None else cases_within(profile, config)
    source = f"{file.name}" if file is not None else "seed 0"
    if not language_model:
        return Inputs(cases=cases, source=source)
    tokenizer = tokenizer_of(sources)
    tokens = built_in_tokens(config, tokenizer) if text is None else text_tokens(text, config, tokenizer)
    return Inputs(cases=cases, text=tokens, source=f"{source}; text: {text.name if text is not None else 'built in'}")


def tokenizer_of(sources: Sequence[Source]) -> Tokenizer:
    """The tokenizer of the sources that have one; bytes where none has. Raises: MismatchError for two that differ."""
    first, *others = [source.tokenizer for source in sources if source.tokenizer is not None] or [BYTES]
    probe = BUILT_IN_TEXT.read_bytes()
    if any(other.encode_bytes(probe) != first.encode_bytes(probe) for other in others):
        raise MismatchError(
            "the two make other tokens of the same text", hint="give token ids, or leave out the language model"
        )
    return first


class Sources(ExitStack):
    """Opens sources by their specification; what they hold on disk is removed at the end."""

    def open(self, specification: str, *, precision: str) -> Source:
        """The source a specification names; ``precision`` is that of a checkpoint which names none.

        Raises: UsageError (no such thing), and the reader's own error for what is damaged.
        """
        path, artifact = _split(specification)
        kind = recognise(path)
        if kind == "folder" and not is_checkpoint_folder(path):
            bundle = open_bundle(path)
            source = self._from_bundle(bundle, artifact or "onnx")
            source.tokenizer = bundle.contents.tokenizer() if bundle.manifest.tokenizer.kind != "none" else None
            return source
        if kind == "special":
            raise UsageError(f"{path} is neither a file nor a folder", hint=WHAT_CAN_BE_COMPARED)
        if kind == "empty":
            raise UsageError(f"{path} is empty", hint=WHAT_CAN_BE_COMPARED)
        if kind == "trace":
            _no_artifact(path, artifact, "a trace")
            trace = TraceFile(path)
            trace.verify()
            return TraceSource(trace)
        if kind in OPENERS:
            source = torch_source(path, artifact or precision)
            if kind == "folder":
                found = find_tokenizer(None, path, source.identity.config)
                source.tokenizer = None if found.facts.kind == "none" else found.open(path)
            return source
        if path.suffix == ".safetensors":
            open_checkpoint(path)  # says how it is damaged
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
        graphs = {own.graph for own in bundle.contents.ort_cpu.values()}
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
