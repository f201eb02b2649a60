"""``andrea-export record``: one run of one model as a file, to be compared anywhere."""

from pathlib import Path
from typing import Annotated

import typer

from andrea_export.cli.options import InputsOption, JsonOption, LanguageModelOption, TextOption
from andrea_export.cli.output import emit, emit_json, size
from andrea_export.cli.progress import progress_on_stderr
from andrea_export.core.errors import UsageError


def record(
    source: Annotated[str, typer.Argument(help="A checkpoint, ONNX file or bundle (DIR, DIR#tensorrt-rtx-fp16).")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The trace to write (safetensors).", metavar="FILE")],
    inputs: InputsOption = None,
    text: TextOption = None,
    language_model: LanguageModelOption = True,
    as_json: JsonOption = False,
) -> None:
    """Run SOURCE once and keep every layer it shows, what it predicts, and its inputs. A checkpoint runs in fp64.

    The trace is REFERENCE or CANDIDATE of a later `diff`, on a machine that need not have what SOURCE runs on.
    """
    from andrea_export.compare.recording import record as recording_of
    from andrea_export.compare.recording import write_trace
    from andrea_export.core.hashing import sha256_of
    from andrea_export.validation.comparison import Sources, inputs_for

    if output.is_dir() or not output.absolute().parent.is_dir():
        what = "is a folder" if output.is_dir() else "is in a folder that does not exist"
        raise UsageError(f"--output {output} {what}", hint="name a file, for example trace.safetensors")
    with progress_on_stderr() as progress, Sources() as sources:
        opened = sources.open(source, precision="fp64")
        if opened.recording is not None:
            raise UsageError(f"{source} is a trace already")
        given = inputs_for([opened], opened.identity.config, file=inputs, text=text, language_model=language_model)
        write_trace(recording_of(opened, given, progress=progress), output)
    facts = {
        "trace": str(output),
        "name": opened.identity.name,
        "weights": opened.identity.weights,
        "num_bytes": output.stat().st_size,
        "sha256": sha256_of(output),
    }
    if as_json:
        emit_json(facts)
    else:
        emit(f"{output}: {facts['name']}, {facts['weights']}, {size(output.stat().st_size)}, sha256 {facts['sha256']}")
