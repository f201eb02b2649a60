"""Progress on stderr: a live display on a terminal, plain lines everywhere else."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from andrea_export.cli.output import note
from andrea_export.core.lines import one_line
from andrea_export.core.progress import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

# A log needs to show that work goes on, not every line of it: a step's details come this far apart at least.
_SECONDS_BETWEEN_DETAILS = 5.0


class LineProgress(Progress):
    """One line when a step begins, one when it ends, and at most one every few seconds while it works."""

    def __init__(self) -> None:
        self._last_line = time.monotonic()

    def __enter__(self) -> LineProgress:
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing is held."""

    def start(self, step: str) -> None:
        self._note(f"{step} …")

    def detail(self, step: str, text: str) -> None:
        """Says what a step is at, if nothing was said for a while."""
        if time.monotonic() - self._last_line >= _SECONDS_BETWEEN_DETAILS:
            self._note(f"{step}: {one_line(text)}")

    def finish(self, step: str, outcome: str) -> None:
        self._note(f"{step}: {one_line(outcome)}")

    def _note(self, text: str) -> None:
        self._last_line = time.monotonic()
        note(text)


class LiveProgress(Progress):
    """Running steps with a spinner, a clock and their last detail; a finished step stays as one line."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._display: RichProgress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}", markup=False),
            console=Console(stderr=True),
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> LiveProgress:
        self._display.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._display.stop()

    def start(self, step: str) -> None:
        self._tasks[step] = self._display.add_task(step, total=None, detail="")

    def detail(self, step: str, text: str) -> None:
        """Shows what a step is at; work that has a name of its own is shown under the step that runs it."""
        task = self._tasks.get(step, next(reversed(self._tasks.values()), None))
        if task is not None:
            self._display.update(task, detail=one_line(text))

    def finish(self, step: str, outcome: str) -> None:
        """Leaves one line where the running step was."""
        if step in self._tasks:
            self._display.remove_task(self._tasks.pop(step))
        self._display.console.print(f"{step}: {one_line(outcome)}", markup=False, highlight=False, soft_wrap=True)


def progress_on_stderr() -> LineProgress | LiveProgress:
    """The display that fits stderr: live where it is a terminal, lines where it is a file, a pipe or a CI log."""
    return LiveProgress() if sys.stderr.isatty() else LineProgress()
