"""The child process: every way it can die is one clear error, and it never outlives its parent.

The worker's place is taken by small programs that do the dying; everything on the parent's side is the real thing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from andrea_export.core.errors import AndreaError, BackendUnavailable, BuildError, PluginError, RunError
from andrea_export.targets.tensorrt.child import Child

PREAMBLE = """
import json, os, signal, subprocess, sys, time
replies = os.fdopen(int(sys.argv[1]), "w")
def say(**event):
    print(json.dumps(event), file=replies, flush=True)
request = json.loads(sys.stdin.readline())
"""

Program = Callable[[str], list[str]]


@pytest.fixture(autouse=True)
def kept_logs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logs that errors point to are kept in pytest's folder instead of the machine's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("logs")))


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """A command that runs these lines after reading one request."""

    def write(lines: str, preamble: str = PREAMBLE) -> list[str]:
        path = tmp_path / "worker.py"
        path.write_text(preamble + textwrap.dedent(lines))
        return [sys.executable, str(path)]

    return write


@contextmanager
def _child(
    command: list[str], folder: Path, failure: type[AndreaError] = BuildError, **environment: str | None
) -> Iterator[Child]:
    with Child(product="TensorRT", command=command, environment=environment, folder=folder, failure=failure) as child:
        yield child


def _ask(
    command: list[str], folder: Path, *, timeout_s: float = 20, failure: type[AndreaError] = BuildError
) -> AndreaError:
    """The error of one request."""
    with pytest.raises(AndreaError) as caught, _child(command, folder, failure) as child:
        child.ask("build", {}, timeout_s=timeout_s, detail=lambda text: None)
    assert "\n" not in str(caught.value)
    return caught.value


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


# --- deaths ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE"])
def test_a_crash_names_the_signal_and_what_was_being_done(program: Program, tmp_path: Path, name: str) -> None:
    command = program(f"""
        say(event="doing", text="parsing the ONNX file")
        print("terminate called without an active exception", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.{name})
    """)
    error = _ask(command, tmp_path)
    assert type(error) is BuildError and error.exit_code == 1
    assert str(error) == (
        f"TensorRT crashed ({name}) while parsing the ONNX file: terminate called without an active exception"
    )


def test_the_failure_of_a_session_is_a_run_error(program: Program, tmp_path: Path) -> None:
    error = _ask(program("os.abort()"), tmp_path, failure=RunError)
    assert type(error) is RunError
    assert str(error) == "TensorRT crashed (SIGABRT) while starting"


def test_a_kill_says_out_of_memory_and_the_peak(program: Program, tmp_path: Path) -> None:
    command = program("""
        say(event="doing", text="building the engine")
        held = bytearray(b"x") * (300 << 20)
        time.sleep(0.5)  # the parent looks ten times a second
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    error = _ask(command, tmp_path)
    assert type(error) is BuildError
    text = str(error)
    assert text.startswith(
        "TensorRT was killed (SIGKILL) while building the engine, probably out of memory: its memory"
    )
    assert 0.29 <= float(text.split("reached ")[1].split(" GiB")[0]) <= 0.4
    assert "profile" in str(error.hint)


def test_an_end_without_an_answer_gives_the_last_words(program: Program, tmp_path: Path) -> None:
    error = _ask(program("raise MemoryError('no room')"), tmp_path)
    assert str(error) == "TensorRT ended without an answer (exit code 1) while starting: MemoryError: no room"


def test_a_worker_that_does_not_read_its_request(program: Program, tmp_path: Path) -> None:
    command = program("import sys; sys.exit(7)", preamble="")
    with (
        pytest.raises(BuildError, match=r"ended without an answer \(exit code 7\)"),
        _child(command, tmp_path) as child,
    ):
        time.sleep(0.3)  # it is gone, and the pipe with it, before anything is asked
        child.ask("build", {"padding": "x" * (1 << 20)}, timeout_s=20, detail=lambda text: None)


def test_a_closed_pipe_with_a_living_worker_is_not_waited_for(program: Program, tmp_path: Path) -> None:
    start = time.monotonic()
    error = _ask(program("os.close(replies.fileno())\ntime.sleep(60)"), tmp_path)
    assert str(error) == "TensorRT stopped answering while starting"
    assert time.monotonic() - start < 20


def test_a_timeout_kills_the_whole_process_group(program: Program, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = program(f"""
        say(event="doing", text="building the engine")
        helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        open({str(pids)!r}, "w").write(f"{{os.getpid()}} {{helper.pid}}")
        time.sleep(60)
    """)
    error = _ask(command, tmp_path, timeout_s=1.0)
    assert str(error) == "TensorRT was still building the engine after 1 s and was stopped"
    assert "engine_timeout_s" in str(error.hint)
    assert all(_wait_until(lambda pid=pid: not _is_alive(int(pid)), 5) for pid in pids.read_text().split())


def test_a_sessions_timeout_gives_no_advice_about_builds(program: Program, tmp_path: Path) -> None:
    error = _ask(program("time.sleep(60)"), tmp_path, failure=RunError, timeout_s=0.5)
    assert isinstance(error, RunError) and "was stopped" in str(error)
    assert "engine_timeout_s" not in str(error.hint)


def test_a_process_left_behind_by_a_worker_is_not_waited_for_and_is_killed(program: Program, tmp_path: Path) -> None:
    """The helper holds the reply pipe open, so that its end never comes."""
    pids = tmp_path / "pids"
    command = program(f"""
        helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=[replies.fileno()])
        open({str(pids)!r}, "w").write(str(helper.pid))
        os.abort()
    """)
    error = _ask(command, tmp_path)
    assert "crashed (SIGABRT)" in str(error)
    assert _wait_until(lambda: not _is_alive(int(pids.read_text())), 5)


@pytest.mark.parametrize("kind", [BackendUnavailable, BuildError, PluginError, RunError])
def test_what_the_worker_reports_is_raised_as_such(program: Program, tmp_path: Path, kind: type[AndreaError]) -> None:
    command = program(f"""
        say(event="log", level="error", text="[node.cpp:1]\\n  No importer registered for op: Foo")
        say(event="log", level="error", text="Error Code 1: Cuda Runtime (cudaError 35: no driver)")
        say(event="log", level="error", text="[node.cpp:1]\\n  No importer registered for op: Foo")
        say(event="error", kind={kind.__name__!r}, message="TensorRT refused", hint="do this")
        time.sleep(60)
    """)
    error = _ask(command, tmp_path)
    assert type(error) is kind
    # Once, on one line, and without the complaint about a missing driver that follows any error where there is none.
    assert str(error) == "TensorRT refused: [node.cpp:1] No importer registered for op: Foo"
    assert str(error.hint) == "do this"


def test_long_messages_are_cut_and_the_whole_log_is_kept(program: Program, tmp_path: Path) -> None:
    command = program("""
        print("everything TensorRT said", flush=True)
        say(event="log", level="error", text="x" * 5000)
        say(event="error", kind="BuildError", message="TensorRT refused", hint=None)
    """)
    error = _ask(command, tmp_path)
    assert len(str(error)) <= 600 and str(error).endswith("…")
    kept = Path(str(error.hint).removeprefix("the whole log: "))
    assert kept.read_text() == "everything TensorRT said\n"
    kept.unlink()


# --- what it inherits, and whom it dies with -------------------------------------------------------------------------


def test_environment_is_inherited_extended_and_unset(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANDREA_TEST_KEPT", "kept")
    monkeypatch.setenv("ANDREA_TEST_DROPPED", "dropped")
    command = program("say(event='result', result={'env': dict(os.environ), 'cwd': os.getcwd()})")
    changes: dict[str, str | None] = {"ANDREA_TEST_DROPPED": None, "ANDREA_TEST_ADDED": "added"}
    with _child(command, tmp_path, BuildError, **changes) as child:
        result = child.ask("build", {}, timeout_s=20, detail=lambda text: None)
    assert result["env"]["ANDREA_TEST_KEPT"] == "kept"
    assert result["env"]["ANDREA_TEST_ADDED"] == "added"
    assert "ANDREA_TEST_DROPPED" not in result["env"]
    assert "ANDREA_TEST_ADDED" not in os.environ and os.environ["ANDREA_TEST_DROPPED"] == "dropped"
    assert result["cwd"] == str(tmp_path)


def test_details_are_told_in_order_and_prints_do_not_disturb(program: Program, tmp_path: Path) -> None:
    command = program("""
        print('{"event": "result", "result": {"forged": true}}', flush=True)
        say(event="doing", text="parsing")
        say(event="log", level="warning", text="careful\\nwith this")
        say(event="result", result={"answer": 42})
    """)
    told: list[str] = []
    with _child(command, tmp_path) as child:
        assert child.ask("build", {}, timeout_s=20, detail=told.append) == {"answer": 42}
    assert told == ["parsing", "warning: careful with this"]


@pytest.mark.parametrize("during", ["build", "waiting"])
def test_a_killed_parent_leaves_no_child(tmp_path: Path, during: str) -> None:
    """A parent killed by SIGKILL cannot clean up; the real worker must notice by itself."""
    pid_file = tmp_path / "pid"
    (tmp_path / "folder").mkdir()
    # In a build the worker may be deep in TensorRT, reading nothing: a sleep stands in for that. Between requests it is
    # the real one.
    sleeping = f"""
        import json, os, sys, time
        from andrea_export.targets.tensorrt.worker import die_with_parent
        request = json.loads(sys.stdin.readline())
        die_with_parent(request["parent"])
        open({str(pid_file)!r}, "w").write(str(os.getpid()))
        time.sleep(60)
    """
    (tmp_path / "sleeping.py").write_text(textwrap.dedent(sleeping))
    command = {
        "build": [sys.executable, str(tmp_path / "sleeping.py")],
        "waiting": [sys.executable, "-m", "andrea_export.targets.tensorrt.worker"],
    }[during]
    parent_program = f"""
        import time
        from pathlib import Path
        from andrea_export.targets.tensorrt.child import Child
        from andrea_export.core.errors import BuildError
        child = Child(
            product="TensorRT", command={command!r}, environment={{}}, folder=Path({str(tmp_path / "folder")!r}),
            failure=BuildError,
        )
        if {during == "build"}:
            child.ask("build", {{}}, timeout_s=60, detail=print)
        open({str(pid_file)!r}, "w").write(str(child.pid))
        time.sleep(60)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(parent_program)])
    try:
        assert _wait_until(lambda: pid_file.is_file() and pid_file.read_text() != "", 20)
        worker = int(pid_file.read_text())
        assert _is_alive(worker)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert _wait_until(lambda: not _is_alive(worker), 10)
    finally:
        parent.kill()
        parent.wait()


def test_an_interrupt_while_waiting_kills_the_child(program: Program, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = program(f"""
        open({str(pids)!r}, "w").write(str(os.getpid()))
        say(event="doing", text="now")
        time.sleep(60)
    """)

    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), _child(command, tmp_path) as child:
        child.ask("build", {}, timeout_s=20, detail=interrupt)
    assert not _is_alive(int(pids.read_text()))
