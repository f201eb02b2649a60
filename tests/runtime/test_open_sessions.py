"""onnxruntime's sessions: shared by the models of a process, left alone by a forked child, tuned as measured."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import andrea_export
from andrea_export.bundle.manifest import open_bundle
from andrea_export.runtime import open as runtime_open
from andrea_export.runtime.open import open_growing, open_shared
from andrea_export.targets.ort_cpu.files import LIBRARY, files_of
from support.generating import PRECISIONS, PROMPT, opened


@pytest.mark.parametrize("precision", PRECISIONS)
def test_two_models_share_their_weights_and_nothing_else(
    ort_bundle: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    with opened(ort_bundle, precision) as alone:
        wanted = [list(alone.generate(prompt, max_new_tokens=12)) for prompt in (PROMPT, PROMPT[:3])]
    monkeypatch.setattr(runtime_open, "_open_sessions", weakref.WeakValueDictionary())
    made = []

    class Counting(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **named: Any) -> None:
            made.append(self)
            super().__init__(*arguments, **named)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Counting)
    first, second = opened(ort_bundle, precision), opened(ort_bundle, precision)
    assert len(made) == 1
    turns = [model.generate(prompt, max_new_tokens=12) for model, prompt in ((first, PROMPT), (second, PROMPT[:3]))]
    found = list(zip(*turns, strict=True))
    assert [list(tokens) for tokens in zip(*found, strict=True)] == wanted
    first.close()
    assert list(second.generate(PROMPT, max_new_tokens=12)) == wanted[0]
    second.close()


def test_a_file_that_changed_is_opened_anew(ort_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(ort_bundle, tmp_path / "bundle"))
    with opened(bundle, "int8") as before:
        logits = before.prefill([PROMPT]).copy()
        data = bundle / "ort-cpu-int8.onnx.data"
        content = bytearray(data.read_bytes())
        content[: len(content) // 2] = bytes(len(content) // 2)
        (tmp_path / "new").write_bytes(content)
        (tmp_path / "new").replace(data)
        with andrea_export.load(bundle, provider="cpu", precision="int8", verify=False) as after:
            assert not np.allclose(after.prefill([PROMPT]), logits)
        assert np.array_equal(before.prefill([PROMPT]), logits)


def test_threads_may_share_a_bundle(ort_bundle: Path) -> None:
    wanted = [list(opened(ort_bundle, name).generate(PROMPT, max_new_tokens=24)) for name in PRECISIONS]

    def said(name: str) -> list[int]:
        with opened(ort_bundle, name) as model:
            return list(model.generate(PROMPT, max_new_tokens=24))

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(said, PRECISIONS * 4)) == wanted * 4


def test_a_forked_process_opens_its_own_sessions(ort_bundle: Path) -> None:
    """Also where a thread of the parent is just opening one: its lock must not be held for ever in the child."""
    program = f"""
import os, andrea_export
from andrea_export.runtime import open as runtime_open
bundle = {str(ort_bundle)!r}
with andrea_export.load(bundle, provider="cpu", precision="int8") as model:
    wanted = list(model.generate([5, 17], max_new_tokens=4))
    with runtime_open._opening:
        child = os.fork()
    if child == 0:
        with andrea_export.load(bundle, provider="cpu", precision="int8") as own:
            os._exit(list(own.generate([5, 17], max_new_tokens=4)) != wanted)
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", program], timeout=120).returncode == 0


def test_a_forked_child_leaves_the_parents_session_alone(ort_bundle: Path) -> None:
    """Released there, it would wait for threads that only the parent has."""
    with opened(ort_bundle, "int4") as model:
        wanted = list(model.generate(PROMPT, max_new_tokens=4))
        child = os.fork()
        if child == 0:
            model.close()
            os._exit(0)
        deadline = time.monotonic() + 20
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.05)
        if ended == (0, 0):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        assert ended == (child, 0), "the child hangs"
        assert list(model.generate(PROMPT, max_new_tokens=4)) == wanted


@pytest.mark.parametrize(("draft", "wanted"), [(None, [None]), ("int4", ["1", "1"])])
def test_sessions_that_take_turns_do_not_spin(
    ort_bundle: Path, monkeypatch: pytest.MonkeyPatch, draft: str | None, wanted: list[str | None]
) -> None:
    """Waiting threads of the session that is not running would hold the cores; one session alone may wait so."""
    monkeypatch.setattr(runtime_open, "_open_sessions", weakref.WeakValueDictionary())
    found = []

    class Recording(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, source: str, options: onnxruntime.SessionOptions, **others: Any) -> None:
            try:
                found.append(options.get_session_config_entry("session.force_spinning_stop"))
            except RuntimeError:  # it is not set
                found.append(None)
            super().__init__(source, options, **others)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Recording)
    andrea_export.load(ort_bundle, provider="cpu", precision="int8", draft=draft).close()
    assert found == wanted


def test_what_draws_buffers_from_onnxruntimes_pool(ort_bundle: Path) -> None:
    """Not the graphs whose attention would wait at its lock; the canonical graph, whose peak would grow."""
    config = open_bundle(ort_bundle).config
    for precision in PRECISIONS:
        opened = open_shared(ort_bundle, files_of(precision), config, 1, library=ort_bundle / LIBRARY)
        with closing(opened) as decoder:
            assert not decoder.session.get_session_options().enable_cpu_mem_arena, precision
    growing = open_growing(ort_bundle, "cpu", config, 1, False)
    assert growing.session.get_session_options().enable_cpu_mem_arena
    growing.close()
