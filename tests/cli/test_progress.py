"""Progress: live on a terminal, plain lines elsewhere; stdout is the same bytes either way."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from andrea_export.cli import progress as progress_module
from andrea_export.cli.progress import LineProgress

PROGRAM = (sys.executable, "-c", "from andrea_export.cli import main; main()")


def read_all(descriptor: int) -> str:
    parts = []
    while True:
        try:
            part = os.read(descriptor, 65536)
        except OSError:  # Linux: the other end of a terminal was closed
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts).decode()


def test_on_a_terminal_progress_is_live_and_stays_off_stdout(built_bundle: Path, cache_dir: Path) -> None:
    command = [*PROGRAM, "validate", str(built_bundle), "--cache-dir", str(cache_dir)]
    reader, writer = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writer, text=True, env=environment) as process:
        os.close(writer)
        on_terminal = read_all(reader)
        assert process.stdout is not None
        stdout = process.stdout.read()
    os.close(reader)
    assert process.returncode == 0, on_terminal
    assert "\x1b[" in on_terminal  # drawn
    assert "validate: " in on_terminal  # and what is finished stays readable
    assert stdout.startswith(f"PASS {built_bundle}: ")
    assert "\x1b" not in stdout


def test_colour_is_for_terminals_that_want_it() -> None:
    from andrea_export.cli.output import coloured

    class Terminal:
        def isatty(self) -> bool:
            return True

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("NO_COLOR", raising=False)
        patch.setenv("TERM", "xterm")
        assert coloured("PASS", "pass", Terminal()) == "\x1b[32mPASS\x1b[0m"
        patch.setenv("NO_COLOR", "1")
        assert coloured("PASS", "pass", Terminal()) == "PASS"
        patch.delenv("NO_COLOR")
        patch.setenv("TERM", "dumb")
        assert coloured("PASS", "pass", Terminal()) == "PASS"
    with Path(os.devnull).open() as no_terminal:
        assert coloured("PASS", "pass", no_terminal) == "PASS"


def test_details_do_not_flood_a_log(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now)
    with LineProgress() as shown:
        shown.start("plugin")
        for index in range(50):
            shown.detail("plugin", f"line\n{index}")
        now = 106.0
        shown.detail("plugin", "still\nworking")
        shown.detail("plugin", "and again")
        shown.finish("plugin", "made")
    assert capsys.readouterr().err.splitlines() == ["plugin …", "plugin: still working", "plugin: made"]
