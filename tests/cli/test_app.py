"""What every command line has in common: exit codes, one line an error, one JSON document, no traceback."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer.main

from andrea_export import __version__
from andrea_export.cli import app
from andrea_export.cli.app import explain
from andrea_export.cli.options import OrtPrecisionChoice, PrecisionChoice, ProviderChoice, TargetChoice, cache_dir_from
from andrea_export.core.errors import AndreaError, BackendUnavailable, BuildError, UsageError
from support.commands import COMMANDS
from tests.conftest import Andrea

PROGRAM = (sys.executable, "-c", "from andrea_export.cli import main; main()")


def test_version(andrea: Andrea) -> None:
    outcome = andrea("--version")
    assert (outcome.code, outcome.stdout, outcome.stderr) == (0, f"andrea-export {__version__}\n", "")


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help_is_on_stdout(andrea: Andrea, command: tuple[str, ...]) -> None:
    outcome = andrea(*command, "--help")
    assert outcome.code == 0
    assert "Usage: andrea-export" in outcome.stdout
    assert outcome.stderr == ""


def test_every_command_is_known() -> None:
    group = typer.main.get_command(app)
    assert tuple(group.commands) == COMMANDS  # type: ignore[attr-defined]


def test_no_command_shows_help_and_is_a_usage_error(andrea: Andrea) -> None:
    outcome = andrea()
    assert outcome.code == 2
    assert "Usage: andrea-export" in outcome.stdout


@pytest.mark.parametrize(
    "arguments",
    [("nonsense",), ("build", "--nonsense"), ("run", "somewhere"), ("inspect",), ("build", "--seed", "many")],
)
def test_wrong_usage_is_one_line_and_a_hint(andrea: Andrea, arguments: tuple[str, ...]) -> None:
    outcome = andrea(*arguments)
    assert outcome.code == 2
    assert outcome.error
    assert outcome.hint is not None
    assert outcome.hint.startswith("see andrea-export")
    assert outcome.stdout == ""
    assert len(outcome.stderr.splitlines()) == 2


def test_a_usage_error_with_json_is_one_document(andrea: Andrea) -> None:
    outcome = andrea("build", "--target", "nonsense", "--json")
    document = json.loads(outcome.stdout)
    assert document["exit_code"] == outcome.code == 2
    assert "nonsense" in document["error"]
    assert document["error"] == outcome.error
    assert document["hint"] == outcome.hint


def test_an_error_with_json_is_one_document(andrea: Andrea, tmp_path: Path) -> None:
    outcome = andrea("inspect", tmp_path / "nothing", "--json")
    assert json.loads(outcome.stdout) == {"error": outcome.error, "hint": outcome.hint, "exit_code": 2}


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (UsageError("a"), 2, "a"),
        (BuildError("b"), 1, "b"),
        (BackendUnavailable("c"), 3, "c"),
        (MemoryError(), 3, "out of memory"),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
            3,
            "out of memory",
        ),
        (OSError(errno.ENOSPC, "No space left on device", "/x/model.onnx"), 3, "/x/model.onnx: the disk is full"),
        (OSError("65536 requested and 4456 written"), 3, "a file was not written whole"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 2, "/x: Permission denied"),
        (ModuleNotFoundError("No module named 'onnx'", name="onnx"), 3, "the Python package 'onnx' is not installed"),
        (ImportError("libcudart.so.13: cannot open shared object file: No such file"), 3, "a library cannot be loaded"),
        (
            OSError("libtorch.so: failed to map segment from shared object"),
            3,
            "a library cannot be loaded: libtorch.so",
        ),
        (ValueError("two\nlines"), 70, "a bug in andrea-export: ValueError"),
        (ModuleNotFoundError("No module named 'andrea_export.x'", name="andrea_export.x"), 70, "a bug"),
    ],
)
def test_every_exception_has_a_line_and_a_code(error: Exception, code: int, text: str) -> None:
    message, _, found = explain(error, ("doctor",))
    assert found == code
    assert message.startswith(text)


def test_every_error_class_has_a_documented_code() -> None:
    def below(kind: type[AndreaError]) -> list[type[AndreaError]]:
        return [kind, *(entry for child in kind.__subclasses__() for entry in below(child))]

    assert {kind.exit_code for kind in below(AndreaError)} <= {1, 2, 3}


def test_a_bug_shows_no_traceback_unless_asked(andrea: Andrea, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("andrea_export.doctor.steps.examine", broken)
    quiet = andrea("doctor")
    assert quiet.code == 70
    assert quiet.error == "a bug in andrea-export: ZeroDivisionError: planted"
    assert quiet.hint == "rerun as `andrea-export --debug doctor` and report the traceback"
    assert "Traceback" not in quiet.stderr
    loud = andrea("--debug", "doctor")
    assert loud.code == 70
    assert "Traceback" in loud.stderr
    assert "planted" in loud.stderr


def test_interrupting_is_one_line(andrea: Andrea, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("andrea_export.doctor.steps.examine", interrupted)
    outcome = andrea("doctor")
    assert (outcome.code, outcome.error, outcome.stdout) == (130, "interrupted", "")


def test_a_closed_pipe_is_no_error_message(built_bundle: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        command = [*PROGRAM, "check", str(built_bundle / "report.json")]
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def run_program(*arguments: object, **options: object) -> subprocess.CompletedProcess[bytes]:
    """One command line in a process of its own, its streams as given."""
    words = [argument if isinstance(argument, bytes) else str(argument) for argument in arguments]
    streams: dict[str, object] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run([*PROGRAM, *words], timeout=120, check=False, **streams)  # type: ignore[call-overload,no-any-return]


def test_a_full_stderr_takes_nothing_from_the_result(built_bundle: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = run_program("run", built_bundle, "--tokens", "5", "--max-new-tokens", "2", stderr=full)
        assert (done.returncode, len(done.stdout.split(b","))) == (0, 2)
        assert run_program("check", "/nope", stderr=full).returncode == 2


def test_a_full_stdout_is_one_line(built_bundle: Path, tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        for more in ((), ("--json",)):
            done = run_program("check", built_bundle / "report.json", *more, stdout=full)
            assert done.returncode == 3
            assert done.stderr.startswith(b"error: stdout cannot be written: No space left on device")
            assert b"Traceback" not in done.stderr
            assert b"Exception ignored" not in done.stderr
        assert run_program("check", tmp_path / "absent", "--json", stdout=full).returncode == 2


def in_shell(redirection: str, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    script = f'"$@" {redirection}'
    words = ["sh", "-c", script, "sh", *PROGRAM, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, timeout=120, check=False)


def test_closed_streams(built_bundle: Path) -> None:
    done = in_shell("2>&-", "run", built_bundle, "--tokens", "5", "--max-new-tokens", "1")
    assert done.returncode == 0
    assert done.stdout.strip().isdigit()
    assert in_shell("2>&-", "check", "/nope").returncode == 2
    done = in_shell(">&-", "check", built_bundle / "report.json")
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, b"error: stdout is closed")


@pytest.mark.parametrize("encoding", ["ascii", "utf-8:strict", "latin-1", "utf-8"])
def test_json_is_json_in_every_encoding(tmp_path: Path, encoding: str) -> None:
    odd = os.fsencode(tmp_path) + b"/\xff\xe2\x82\xac"  # half a name is no UTF-8, the other half a euro sign
    done = run_program("check", odd, "--json", env={**os.environ, "PYTHONIOENCODING": encoding})
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert "\u20ac is not UTF-8" in json.loads(done.stdout.decode(encoding.partition(":")[0]))["error"]


def test_a_checkpoint_whose_name_is_no_text(checkpoint: Path, tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/\xff.safetensors"
    Path(os.fsdecode(odd)).write_bytes(checkpoint.read_bytes())
    done = run_program("build", tmp_path / "out", "--checkpoint", odd, "--target", "onnx", "--json")
    assert done.returncode == 2, done.stderr
    assert "is not UTF-8" in json.loads(done.stdout)["error"]
    assert not (tmp_path / "out").exists()


def test_a_figure_that_is_not_finite_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    from andrea_export.cli.output import emit_json

    emit_json({"steps": [{"mean": float("nan"), "max": float("inf")}]})
    assert json.loads(capsys.readouterr().out) == {"steps": [{"mean": "nan", "max": "inf"}]}


def test_control_characters_are_shown_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    from andrea_export.cli.output import emit, note
    from andrea_export.core.lines import one_line, shortened, table

    hostile = "a\x1b]0;title\x07\x1b[2J\x9b1A\u202eb\u2066\rc\x1b[32mPASS\x1b[0m"
    shown = "a\\x1b]0;title\\x07\\x1b[2J\\x9b1A\\u202eb\\u2066\\rc\\x1b[32mPASS\\x1b[0m"
    emit(hostile)
    note(hostile)
    assert capsys.readouterr() == (shown + "\n", shown + "\n")
    assert "\x1b]" not in one_line(hostile)
    assert len(one_line("x" * 5000)) <= 501
    assert shortened("a" * 500).startswith("aaa")
    assert max(map(len, table(("name", "type"), [("n" * 9000, "FLOAT"), ("\x1b[2J", "\x07")], left=2))) < 140


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("build", ""), "an argument is empty"),
        (("build", "out", "--checkpoint", ""), "--checkpoint is empty"),
        (("build", "out", "--checkpoint="), "--checkpoint is empty"),
        (("inspect", ""), "an argument is empty"),
        (("trace", "--seed", "-1"), "--seed is -1, expected 0 to 2^63 - 1"),
        (("trace", "--seed", str(2**63)), f"--seed is {2**63}, expected"),
        (("trace", "--tokens", "9" * 5000), "(5,000 characters)' is not a token id"),
        (("trace", "--tokens", ""), "--tokens is empty"),
    ],
)
def test_values_that_nothing_takes(andrea: Andrea, arguments: tuple[str, ...], text: str) -> None:
    outcome = andrea(*arguments)
    assert outcome.code == 2
    assert text in outcome.error
    assert len(outcome.error) < 200


def test_a_terminal_without_unicode_gets_escapes(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    run = {"capture_output": True, "env": environment, "check": False, "timeout": 60}
    done = subprocess.run([*PROGRAM, "trace", "--preset", "andrea-tiny", "--backend", "torch"], **run)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    assert b"h = m\\xb7W_1 + b_1" in done.stdout
    odd = os.fsencode(tmp_path) + b"/\xff"
    done = subprocess.run([*PROGRAM, "check", odd], **run)  # type: ignore[call-overload]
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: ")
    assert b"is not UTF-8" in done.stderr


def test_help_states_the_defaults(andrea: Andrea) -> None:
    text = " ".join(andrea("build", "--help").stdout.split())
    for default in (
        "the preset's name, here",
        "all this machine can",
        "fp32",
        "0",
        "the checkpoint's own, else andrea-120m",
        "none: untrained weights",
        "andrea- export in $XDG_CACHE_HOME or ~/.cache",
    ):
        assert f"[default: {default}" in text
    assert "[default: the last]" in " ".join(andrea("trace", "--help").stdout.split())


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help_is_clean_in_80_columns(andrea: Andrea, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = andrea(*command, "--help").stdout.replace("COMMAND [ARGS]...", "")
    assert max(map(len, text.splitlines())) <= 80
    for noise in ("<bool>", "<list", "[[", "..."):
        assert noise not in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_build_that_is_stopped_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    # A runner started in the background may hand down an ignored SIGINT, which Python then leaves ignored.
    default = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    command = [
        sys.executable,
        "-c",
        default + PROGRAM[2],
        "build",
        "out",
        "--preset",
        "andrea-tiny",
        "--target",
        "onnx",
        "--cache-dir",
        "cache",
    ]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".out.*")):
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline, "the build wrote nothing in a minute"
        time.sleep(0.02)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "Traceback" not in stderr
    assert stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) in ([], ["cache"])


def test_choices_are_those_of_the_library() -> None:
    from andrea_export.core.precision import BUILT_PRECISIONS, ORT_PRECISIONS
    from andrea_export.sessions.onnxruntime import PROVIDERS
    from andrea_export.targets.registry import REGISTRY

    assert tuple(choice.value for choice in TargetChoice) == tuple(REGISTRY)
    assert tuple(choice.value for choice in PrecisionChoice) == BUILT_PRECISIONS
    assert tuple(choice.value for choice in OrtPrecisionChoice) == ORT_PRECISIONS
    assert tuple(choice.value for choice in ProviderChoice) == ("auto", *PROVIDERS)


def test_the_cache_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_dir_from(None) == tmp_path / ".cache/andrea-export"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir_from(None) == tmp_path / "xdg/andrea-export"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_dir_from(None) == tmp_path / ".cache/andrea-export"
    assert cache_dir_from(tmp_path / "mine") == tmp_path / "mine"


def test_shell_completion_offers_the_presets() -> None:
    environment = {
        **os.environ,
        "_ANDREA_EXPORT_COMPLETE": "complete_bash",
        "COMP_WORDS": "andrea-export build --preset ",
    }
    done = subprocess.run(
        PROGRAM, env={**environment, "COMP_CWORD": "3"}, capture_output=True, text=True, check=True, timeout=60
    )
    assert "andrea-tiny" in done.stdout.split()
