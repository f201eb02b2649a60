"""A contender in a process of its own: started, asked, and what it answered."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers.prepare import HERE, Peer, python_of


@dataclass(slots=True, kw_only=True)
class Contender:
    """A running worker and what it has answered."""

    peer: Peer
    precision: str
    process: subprocess.Popen[str]
    load_s: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)
    figures: dict[str, list[float]] = field(default_factory=dict)
    accuracy: dict[str, dict[str, float]] = field(default_factory=dict)
    problem: str = ""
    """Why there are no figures, or not all."""
    accuracy_problem: str = ""
    """Why there is no accuracy; the figures stand."""

    def stop(self) -> None:
        """Ends the process, by force if it does not go by itself."""
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def ask(self, command: str) -> dict[str, Any]:
        """One answer. Raises RuntimeError if the worker is gone."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError("the worker is gone") from None
        return self.hear()

    def hear(self) -> dict[str, Any]:
        """The next line. Raises RuntimeError if there is none."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the worker is gone")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def attempt(self, stage: str, action: Callable[[], object]) -> None:
        """One stage, if it is still well; what goes wrong is its problem, not the run's."""
        if not self.problem:
            self.problem = self._problem_of(stage, action)

    def attempt_accuracy(self, stage: str, action: Callable[[], object]) -> None:
        """As ``attempt``, where a failure leaves the figures standing: nobody leaves the goals by it."""
        if not self.problem and not self.accuracy_problem:
            self.accuracy_problem = self._problem_of(stage, action)

    def row(self) -> dict[str, Any]:
        """All of it, for the document."""
        return {
            "name": self.peer.name,
            "precision": self.precision,
            "versions": self.versions,
            "load_s": self.load_s,
            "problem": self.problem,
            "accuracy_problem": self.accuracy_problem,
            "accuracy": self.accuracy,
            "medians": {name: statistics.median(values) for name, values in self.figures.items()},
            "rounds": self.figures,
        }

    def _problem_of(self, stage: str, action: Callable[[], object]) -> str:
        try:
            action()
        except (RuntimeError, ValueError, KeyError, OSError) as error:
            problem = f"{stage}: {error}"
            print(f"{self.peer.name} {self.precision}: {problem}", file=sys.stderr)
            return problem
        return ""


def start(peer: Peer, precision: str, folder: Path, place: Path, threads: int) -> Contender:
    """A worker in the peer's environment (in ``folder``), on the model that is in ``place``."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    environment["PYTHONPATH"] = os.environ.get("PYTHONPATH", "") if not peer.requirements else ""
    process = subprocess.Popen(
        [
            python_of(peer, folder), str(HERE / "worker.py"),
            peer.module, peer.variants[precision], str(place), str(threads),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(place / f"{peer.name}-{precision}.log").open("w", encoding="utf-8"),
        text=True,
        env=environment,
    )  # fmt: skip
    return Contender(peer=peer, precision=precision, process=process)
