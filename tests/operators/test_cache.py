"""The cache of builds: damaged, concurrent, killed and locked."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from andrea_export.core.errors import PluginError
from andrea_export.operators.build import build_host_library
from andrea_export.operators.sources import plugin_source_dir, plugin_sources_sha256


def entries(cache: Path) -> list[str]:
    """What is in the cache besides logs and locks."""
    return sorted(path.name for path in (cache / "plugins").iterdir() if path.suffix not in (".log", ".lock"))


def test_a_second_build_is_taken_from_the_cache(tmp_path: Path) -> None:
    lines: list[str] = []
    first = build_host_library(tmp_path, on_line=lines.append)
    assert any("andrea_gelu_host" in line for line in lines)
    stamp = first.library.stat().st_mtime_ns
    lines.clear()
    second = build_host_library(tmp_path, on_line=lines.append)
    assert lines == []
    assert second.library == first.library
    assert second.library.stat().st_mtime_ns == stamp
    record = json.loads((first.library.parent / "build.json").read_text())
    assert record["sources_sha256"] == plugin_sources_sha256()


@pytest.mark.parametrize("damage", ["flip", "truncate", "no record", "record of another", "not json"])
def test_a_damaged_entry_is_built_again(tmp_path: Path, damage: str) -> None:
    library = build_host_library(tmp_path).library
    whole = library.read_bytes()
    record = library.parent / "build.json"
    # Beside the file and renamed over it: this process has it mapped.
    if damage in ("flip", "truncate"):
        spoiled = bytearray(whole)
        spoiled[len(spoiled) // 2] ^= 1
        library.with_suffix(".new").write_bytes(bytes(spoiled) if damage == "flip" else whole[:100])
        library.with_suffix(".new").replace(library)
    elif damage == "no record":
        record.unlink()
    elif damage == "record of another":
        record.write_text(json.dumps({**json.loads(record.read_text()), "key": "0" * 32}))
    else:
        record.write_text("[")
    again = build_host_library(tmp_path)
    assert again.library == library
    assert library.read_bytes() == whole
    assert np.array_equal(again.apply(np.zeros(3, np.float32), "fp32"), np.zeros(3, np.float32))
    assert entries(tmp_path) == [library.parent.name]


def test_builds_at_the_same_time_make_one(tmp_path: Path) -> None:
    lines: list[str] = []
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda _: build_host_library(tmp_path, on_line=lines.append), range(4)))
    assert len({host.library for host in built}) == 1
    assert sum(line.endswith("Linking CXX shared library libandrea_gelu_host.so") for line in lines) == 1
    assert len(entries(tmp_path)) == 1


def test_a_killed_build_leaves_nothing_that_matters(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=build_host_library, args=(tmp_path,))
    process.start()
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("plugins/.andrea_gelu_host-*")):
            assert process.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    assert [name for name in entries(tmp_path) if not name.startswith(".")] == []
    built = build_host_library(tmp_path)
    # Compilers that outlived the kill may still write into their folder; once they are gone, so is what they left.
    deadline = time.monotonic() + 60
    while entries(tmp_path) != [built.library.parent.name]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
        assert build_host_library(tmp_path).library == built.library


def test_a_running_build_keeps_its_folder(tmp_path: Path) -> None:
    """What looks like a leftover is not swept while its build holds the lock."""
    library = build_host_library(tmp_path).library
    running = tmp_path / "plugins" / f".{library.parent.name}.running"
    running.mkdir()
    with (tmp_path / "plugins" / f"{library.parent.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        build_host_library(tmp_path)
        assert running.exists()
    build_host_library(tmp_path)
    assert not running.exists()


def test_the_sources_are_not_written_to(tmp_path: Path) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in plugin_source_dir().rglob("*"))
    build_host_library(tmp_path)
    assert sorted((path, path.stat().st_mtime_ns) for path in plugin_source_dir().rglob("*")) == before


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "plugins").write_text("a file where the folder should be")
    with pytest.raises(PluginError, match="cannot be used") as caught:
        build_host_library(tmp_path)
    assert caught.value.hint is not None
