"""The child process in which TensorRT runs: reads requests from stdin, answers on the pipe whose number it was given.

Run as ``python -m andrea_export.targets.tensorrt.worker FD``. Which flavour it drives is Polygraphy's choice, by the
environment it was started with. It ends when stdin does.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, TextIO

from andrea_export.core.errors import AndreaError, BuildError, RunError, first_line

if TYPE_CHECKING:
    from andrea_export.targets.tensorrt.worker_run import EngineRunner

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>

# Said for every integer input, which has the int64 type it asks for; and the frame around a node's dump.
_NOISE = ("has Int64 binding", "--- Begin node ---", "--- End node ---")


class Replies:
    """Writes events to the parent, one JSON line each."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def doing(self, text: str) -> None:
        """What the worker is about to do, as a participle: ``parsing the ONNX file``."""
        self._send({"event": "doing", "text": text})

    def log(self, level: str, text: str) -> None:
        """One message of TensorRT's log, ``warning`` or ``error``."""
        self._send({"event": "log", "level": level, "text": text})

    def result(self, result: dict[str, Any]) -> None:
        """The answer to a request."""
        self._send({"event": "result", "result": result})

    def error(self, error: AndreaError) -> None:
        """Why a request has no answer."""
        self._send({"event": "error", "kind": type(error).__name__, "message": str(error), "hint": error.hint})

    def _send(self, event: dict[str, Any]) -> None:
        self._file.write(json.dumps(event) + "\n")
        self._file.flush()


class _ToParent(logging.Handler):
    """Writes Polygraphy's log, and so TensorRT's, to the log file; tells the parent warnings and errors as well."""

    def __init__(self, replies: Replies) -> None:
        super().__init__()
        self._replies = replies

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage().strip()
        sys.stderr.write(f"{record.levelname} {text}\n")
        sys.stderr.flush()
        level = record.levelname.lower()  # what is critical is raised as well, and reported as that
        if level in ("warning", "error") and not any(noise in text for noise in _NOISE):
            self._replies.log(level, text)


def die_with_parent(parent: int) -> None:
    """The kernel kills this process when the thread that started it ends: no build outlives its asker."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the line above
        os.kill(os.getpid(), signal.SIGKILL)


def _start_logging(replies: Replies) -> None:
    from polygraphy.logger import G_LOGGER

    G_LOGGER.letter = False
    G_LOGGER.module_severity = G_LOGGER.VERBOSE  # TensorRT's INFO
    G_LOGGER.use_python_logging_system = True
    logger = logging.getLogger("Polygraphy")
    logger.setLevel(1)
    logger.propagate = False
    logger.addHandler(_ToParent(replies))


class Worker:
    """Answers requests. Holds the engine that ``open`` opened."""

    def __init__(self, replies: Replies) -> None:
        self._replies = replies
        self._runner: EngineRunner | None = None

    def build(self, request: dict[str, Any]) -> dict[str, Any]:
        """Builds an engine; see ``worker_build.build``."""
        from andrea_export.targets.tensorrt import worker_build

        return worker_build.build(request, self._replies.doing)

    def open(self, engine: str) -> EngineRunner:
        """An engine, ready to run."""
        from andrea_export.targets.tensorrt import worker_run

        return worker_run.EngineRunner(engine)

    def answer(self, request: dict[str, Any]) -> None:
        """Replies with a result or an error. Anything else ends the process, its traceback in the log."""
        from polygraphy.exception import PolygraphyException

        verb = request["verb"]
        failure = RunError if verb in ("open", "run") else BuildError
        try:
            self._replies.result(self._result(verb, request))
        except AndreaError as error:
            self._replies.error(error)
        except PolygraphyException as error:
            self._replies.error(failure(f"TensorRT refused: {first_line(error)}"))

    def _result(self, verb: str, request: dict[str, Any]) -> dict[str, Any]:
        from andrea_export.targets.tensorrt import worker_build

        if verb == "describe":
            return worker_build.describe()
        if verb == "build":
            die_with_parent(request["parent"])
            return self.build(request)
        if verb == "open":
            self._runner = self.open(request["engine"])
            return self._runner.describe()
        if verb == "run" and self._runner is not None:
            return self._runner.run(request["feeds"], request["folder"])
        raise ValueError(f"cannot '{verb}' now")


def main(worker_type: type[Worker] = Worker) -> None:
    """Answers requests until stdin ends."""
    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as pipe:
        replies = Replies(pipe)
        _start_logging(replies)
        worker = worker_type(replies)
        for line in sys.stdin:
            worker.answer(json.loads(line))


if __name__ == "__main__":
    main()
