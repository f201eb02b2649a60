"""The child process TensorRT runs in, seen from the parent: started, asked, watched, and explained when it dies.

TensorRT can abort, crash or be killed, and needs an environment that only a new process can have; in a child each of
these is one error. Requests and replies are lines of JSON over two pipes of their own: TensorRT prints to stdout as
it likes, so stdout and stderr go to a log file.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from andrea_export.core.errors import AndreaError, BackendUnavailable, BuildError, PluginError, RunError

WORKER_COMMAND = (sys.executable, "-m", "andrea_export.targets.tensorrt.worker")

# The errors a worker may report by name; any other name in a reply is a bug.
_REPORTED: dict[str, type[AndreaError]] = {
    error.__name__: error for error in (BackendUnavailable, BuildError, PluginError, RunError)
}
_POLL_S = 0.1  # how stale the reading of a running child's peak memory may be
_LAST_BREATH_S = 5  # between closing its pipe and its end, a crashing process may write a core file
_MESSAGE_CHARS = 600  # an error is one line; the log holds the rest

Detail = Callable[[str], None]


class Child:
    """One worker process. Used as a context manager; at the end it and its whole process group are gone.

    ``product`` is the flavour's name for messages, ``failure`` the error that a death is. The worker inherits this
    process's environment, changed by ``environment`` (None unsets a name), and runs in ``folder``, where its log is.
    """

    def __init__(
        self,
        *,
        product: str,
        command: Sequence[str],
        environment: Mapping[str, str | None],
        folder: Path,
        failure: type[AndreaError],
    ) -> None:
        self.product = product
        self.failure = failure
        self.peak_memory_bytes = 0
        self._log = folder / "tensorrt.log"
        self._doing = "starting"
        self._errors: list[str] = []
        self._buffer = b""
        # Inherited as it is: the cli has read what it wanted from it.
        variables = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
        self._replies, write_end = os.pipe()
        try:
            with self._log.open("wb") as log:
                # The folder is the working directory, so that a file of the user's directory named like a module is not
                # imported; a session of its own makes the worker the leader of a group that can be killed as one.
                self._process = subprocess.Popen(
                    [*command, str(write_end)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    pass_fds=(write_end,),
                    env=variables,
                    cwd=folder,
                    start_new_session=True,
                )
        except BaseException:
            os.close(self._replies)
            raise
        finally:
            os.close(write_end)

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._process.pid

    def ask(self, verb: str, arguments: Mapping[str, Any], *, timeout_s: float, detail: Detail) -> dict[str, Any]:
        """The worker's answer to one request. ``detail`` is told what it says meanwhile.

        Raises: what the worker reports (BackendUnavailable, BuildError, PluginError, RunError), or ``failure`` if it
        crashes, is killed, or takes longer than ``timeout_s``, after which it is killed.
        """
        deadline = time.monotonic() + timeout_s
        self._errors.clear()
        request = {"verb": verb, "parent": os.getpid(), **arguments}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._death() from None
        while True:
            line = self._read_line(deadline, timeout_s)
            if line is None:
                raise self._death()
            event = json.loads(line)
            if event["event"] == "result":
                result: dict[str, Any] = event["result"]
                return result
            if event["event"] == "error":
                message = ": ".join(filter(None, (event["message"], _condensed(self._errors))))
                raise _REPORTED[event["kind"]](_one_line(message, _MESSAGE_CHARS), hint=self._hint(event["hint"]))
            if event["event"] == "doing":
                self._doing = event["text"]
                detail(event["text"])
            elif event["event"] == "log":
                detail(f"{event['level']}: {_one_line(event['text'], 200)}")
                if event["level"] == "error":
                    self._errors.append(event["text"])

    def close(self) -> None:
        """Ends the worker and its process group at once: what it was asked for it has answered, or never will."""
        self._kill()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a dead worker may not have read all that was written
            self._process.stdin.close()
        os.close(self._replies)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- inside ---

    def _read_line(self, deadline: float, timeout_s: float) -> bytes | None:
        """The next line of the worker's replies, or None at its end. Raises ``failure`` past the deadline."""
        while b"\n" not in self._buffer:
            self._watch_memory()
            left = deadline - time.monotonic()
            if left <= 0:
                self._kill()
                # A build's time is the recipe's; a session's is fixed, and nothing to advise about.
                advice = "give it longer with the recipe's engine_timeout_s" if self.failure is BuildError else None
                raise self.failure(
                    f"{self.product} was still {self._doing} after {timeout_s:g} s and was stopped",
                    hint=self._hint(advice),
                )
            ready, _, _ = select.select([self._replies], [], [], min(left, _POLL_S))
            if not ready:
                if self._has_ended() and not select.select([self._replies], [], [], 0)[0]:
                    return None  # it left a child of its own that holds the pipe open
                continue
            chunk = os.read(self._replies, 1 << 16)
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _watch_memory(self) -> None:
        """Keeps the highest resident size seen: a killed worker cannot report it, nor the kernel afterwards."""
        try:
            status = Path(f"/proc/{self._process.pid}/status").read_text()
        except OSError:
            return
        for row in status.splitlines():
            if row.startswith("VmHWM:"):
                self.peak_memory_bytes = max(self.peak_memory_bytes, int(row.split()[1]) * 1024)

    def _has_ended(self) -> bool:
        """Whether the worker is dead. It is not reaped: its number stays its group's until that is killed."""
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _kill(self) -> None:
        """Kills whatever of the worker's process group is alive, and reaps the worker."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _death(self) -> AndreaError:
        """Why the worker is gone, as one error."""
        deadline = time.monotonic() + _LAST_BREATH_S
        while not (ended := self._has_ended()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        self._kill()
        if not ended:
            return self.failure(f"{self.product} stopped answering while {self._doing}", hint=self._hint(None))
        code = self._process.returncode
        peak = f"its memory had reached {self.peak_memory_bytes / 2**30:.2f} GiB"
        if code == -signal.SIGKILL:
            return self.failure(
                f"{self.product} was killed (SIGKILL) while {self._doing}, probably out of memory: {peak}",
                hint=self._hint("free memory, or narrow the recipe's profile"),
            )
        log = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        last = _condensed(self._errors) or (log[-1] if log else "")
        cause = f": {last}" if last else ""
        crashed = f"crashed ({signal.Signals(-code).name})" if code < 0 else ""
        how = crashed or f"ended without an answer (exit code {code})"
        return self.failure(
            _one_line(f"{self.product} {how} while {self._doing}{cause}", _MESSAGE_CHARS), hint=self._hint(None)
        )

    def _hint(self, advice: str | None) -> str | None:
        """The advice, and where the whole log is kept."""
        if not self._log.is_file() or self._log.stat().st_size == 0:
            return advice
        # The log's folder goes away with the child; whoever has an error to look into needs the log to stay.
        number, kept = tempfile.mkstemp(prefix="andrea-export-tensorrt-", suffix=".log")
        with os.fdopen(number, "wb") as file:
            file.write(self._log.read_bytes())
        return f"{advice}; the whole log: {kept}" if advice else f"the whole log: {kept}"


def _condensed(errors: Sequence[str]) -> str:
    """Different error messages in the order they came, on one line.

    Where there is no GPU, any error is followed by one about CUDA, which is left out unless it is the only one.
    """
    different = list(dict.fromkeys(" ".join(error.split()) for error in errors))
    return " | ".join([error for error in different if "cudaError" not in error] or different)


def _one_line(text: str, limit: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
