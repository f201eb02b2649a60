"""One comparison from beginning to end: what the verbs and ``validate`` call."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from andrea_export.compare.compare import Compared, compare, language_rows
from andrea_export.compare.inputs import (
    Inputs,
    built_in_tokens,
    cases_from_tokens,
    cases_within,
    text_tokens,
    tokens_from_file,
)
from andrea_export.compare.sources.base import Source, same_model
from andrea_export.core.errors import MismatchError, UsageError
from andrea_export.core.names import layer_names
from andrea_export.core.profile import Profile
from andrea_export.core.progress import Progress
from andrea_export.judge.verdicts import Terms, judged
from andrea_export.report.schema import LanguageModelRow, Report
from andrea_export.sessions.onnxruntime import onnxruntime_version
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
    tokens = built_in_tokens(config) if text is None else text_tokens(text, config)
    return Inputs(cases=cases, text=tokens, source=f"{source}; text: {text.name if text is not None else 'built in'}")
