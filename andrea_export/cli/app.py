"""The application: its commands, its two global options, and what every failure becomes.

Exit codes: 0 good · 1 a check failed · 2 usage or bad input · 3 backend, hardware, memory or disk space not there ·
70 a bug in this program (sysexits' EX_SOFTWARE) · 130 interrupted · 141 stdout closed by its reader · 143 terminated.
"""

import errno
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
import typer.main

from andrea_export import __version__
from andrea_export.cli import bench, build, check, convert, diff, doctor, inspect, record, report, run, trace, validate
from andrea_export.cli.output import (
    OutputClosed,
    OutputFailed,
    emit,
    emit_json,
    flush_streams,
    note,
    note_error,
    prepare_streams,
)
from andrea_export.core.errors import AndreaError, UsageError
from andrea_export.core.lines import one_line

EXIT_UNAVAILABLE = 3
EXIT_BUG = 70
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_CLOSED = 128 + signal.SIGPIPE
EXIT_TERMINATED = 128 + signal.SIGTERM

app = typer.Typer(
    name="andrea-export",
    help="Takes ANDREA from its PyTorch reference to ONNX, TensorRT and TensorRT-RTX, and proves layer by layer that "
    "what was built is the model.",
    epilog="Exit codes: 0 good, 1 a check failed, 2 usage or bad input, 3 a backend or hardware is not there.",
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its frames cost a third of 80 columns, and it takes [brackets] for markup
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command, _short_help in (
    (build.build, "Build a bundle, and prove it. Exit 1: the proof failed."),
    (validate.validate, "Compare a bundle with torch again, layer by layer."),
    (diff.diff, "Compare two models, layer by layer."),
    (record.record, "Keep one run of a model as a file, for a later diff."),
    (check.check, "Judge the figures of a report again."),
    (report.report, "Render a report: HTML, JUnit, Markdown or JSON."),
    (run.run, "Generate text or tokens from a bundle."),
    (bench.bench, None),
    (convert.convert, "Write a checkpoint in another format."),
    (inspect.inspect, "Show what a file or a bundle holds."),
    (trace.trace, "Follow one token through one block, step by step."),
    (doctor.doctor, "Show what this machine can do, and what is missing."),
):
    app.command(_command.__name__, short_help=_short_help)(_command)


def _print_version(asked: bool) -> None:
    if asked:
        emit(f"andrea-export {__version__}")
        raise typer.Exit()


@app.callback(invoke_without_command=True)
def _global_options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks. Goes before the command.")] = False,
) -> None:
    if context.invoked_subcommand is None:
        emit(context.get_help())
        raise typer.Exit(2)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and exits with its code; never lets a traceback out unless ``--debug`` is given."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    with _terminate_cleanly():
        try:
            prepare_streams()
            code = _run(given)
        except UsageError as error:
            code = _fail(str(error), error.hint, error.exit_code, as_json=False)
        code = flush_streams(code)
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    """The exit code of one command line, its error already shown."""
    as_json = "--json" in arguments
    # A parse error can come before the option is read, so it is looked up here: only before the command, as documented.
    debug = "--debug" in arguments[: next((i for i, word in enumerate(arguments) if not word.startswith("-")), None)]
    try:
        _refuse_words(arguments)
        outcome = typer.main.get_command(app).main(args=arguments, prog_name="andrea-export", standalone_mode=False)
        code = outcome if isinstance(outcome, int) else 0
        if code == EXIT_INTERRUPTED:  # typer turns Ctrl-C into this code
            return _fail("interrupted", None, code, as_json=as_json)
        return code
    except OutputClosed:
        return EXIT_CLOSED
    except KeyboardInterrupt:  # before typer has begun
        return _fail("interrupted", None, EXIT_INTERRUPTED, as_json=as_json)
    except Exception as error:
        if debug:
            note(traceback.format_exc())
        message, hint, code = explain(error, arguments)
        return _fail(message, hint, code, as_json=as_json)


def explain(error: Exception, arguments: Sequence[str] = ()) -> tuple[str, str | None, int]:
    """What any exception becomes for a user: (message, hint, exit code)."""
    if isinstance(error, AndreaError):
        return str(error), error.hint, error.exit_code
    # Typer itself refused the command line. Its exceptions are click's, or since 0.26 its own copy of them.
    if any(base.__name__ == "ClickException" for base in type(error).__mro__):
        context = getattr(error, "ctx", None)
        where = context.command_path if context is not None else "andrea-export"
        # Some releases of typer let pydantic's own prefix through.
        return str(error.format_message()).replace("Value error, ", ""), f"see {where} --help", 2  # type: ignore[attr-defined]
    # torch's CPU allocator raises a RuntimeError instead (c10/core/impl/alloc_cpu.cpp).
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)):
        message = f"out of memory: {error}" if str(error) else "out of memory"
        return message, "free memory, or build a smaller preset", EXIT_UNAVAILABLE
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("andrea"):
        hint = "pip install 'andrea-export[cpu,rtx,plugin]', and see andrea-export doctor"
        return f"the Python package '{error.name.split('.')[0]}' is not installed", hint, EXIT_UNAVAILABLE
    if isinstance(error, ImportError | OSError) and "shared object" in str(error):  # the dynamic loader's own words
        hint = "reinstall its package; see andrea-export doctor"
        return f"a library cannot be loaded: {error}", hint, EXIT_UNAVAILABLE
    if isinstance(error, OSError) and error.errno is None and "requested and" in str(error):
        # numpy's tofile says how much it wrote, not why it stopped.
        hint = "free disk space there, or name another place"
        return f"a file was not written whole ({error})", hint, EXIT_UNAVAILABLE
    if isinstance(error, OSError) and error.errno is not None:
        what = f"{error.filename}: " if error.filename is not None else ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "free space there, or choose another output and --cache-dir"
            return f"{what}the disk is full", hint, EXIT_UNAVAILABLE
        may_not = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        return f"{what}{error.strerror}", "choose a path you may write to" if may_not else None, 2
    odd = [word for word in arguments if not _is_text(word)]
    if odd and (isinstance(error, UnicodeEncodeError) or "not valid UTF-8" in str(error)):
        return _not_utf8(odd), "rename it", 2
    command = " ".join(["andrea-export", "--debug", *(word for word in arguments if word != "--debug")])
    message = f"a bug in andrea-export: {type(error).__name__}: {error}"
    return message, f"rerun as `{command}` and report the traceback", EXIT_BUG


def _not_utf8(words: Sequence[str]) -> str:
    return f"{', '.join(words)} is not UTF-8, as the name of a file that libraries read must be"


def _is_text(word: str) -> bool:
    """Whether an argument was given as UTF-8; the bytes of another are lone surrogates in it."""
    return not any("\ud800" <= character <= "\udfff" for character in word)


def _fail(message: str, hint: str | None, code: int, *, as_json: bool) -> int:
    note_error(message, hint)
    if as_json:
        try:
            emit_json({"error": one_line(message), "hint": hint and one_line(hint), "exit_code": code})
        except OutputClosed:
            return EXIT_CLOSED
        except OutputFailed:  # stderr has the error; stdout was broken before or is now
            return code
    return code


def _refuse_words(arguments: Sequence[str]) -> None:
    """An empty argument is an unset shell variable; as a path it would mean the working directory. And a path that is
    no UTF-8 would stop a build half way, in the first library that does not take it; inspect needs none of those."""
    pairs = list(zip(["", *arguments], arguments, strict=False))
    # A prompt does not name a file; what is wrong with it is said where it is read.
    names = [word for before, word in pairs if before != "--prompt" and not word.startswith("--prompt=")]
    if "inspect" not in arguments and (odd := [word for word in names if not _is_text(word)]):
        raise UsageError(_not_utf8(odd), hint="rename it")
    for before, word in pairs:
        option = word[:-1] if word.startswith("--") and word.endswith("=") else before if word == "" else None
        if option is not None and option != "--tokens":  # which says more about what it expects
            raise UsageError(
                f"{option if option.startswith('--') else 'an argument'} is empty", hint="is a shell variable unset?"
            )


@contextmanager
def _terminate_cleanly() -> Iterator[None]:
    """Lets SIGTERM unwind the stack, so that half-written output is removed as it is for Ctrl-C."""

    def on_terminate(number: int, frame: Any) -> NoReturn:
        raise SystemExit(EXIT_TERMINATED)

    before = signal.signal(signal.SIGTERM, on_terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
