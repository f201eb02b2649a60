"""The number of threads: hardware threads, affinity and container quotas of both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from andrea_export.runtime.cores import num_usable_cores


@pytest.fixture
def eight_threads_on_four_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for cpu in range(8):
        folder = tmp_path / "system" / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    (tmp_path / "cgroup").mkdir()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    return tmp_path


def cores(root: Path) -> int:
    return num_usable_cores(root / "cgroup", root / "system")


def test_two_hardware_threads_are_one_core(eight_threads_on_four_cores: Path) -> None:
    assert cores(eight_threads_on_four_cores) == 4


def test_affinity_counts(eight_threads_on_four_cores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 4, 5})
    assert cores(eight_threads_on_four_cores) == 2


@pytest.mark.parametrize(
    ("quota", "wanted"),
    [("max 100000", 4), ("150000 100000", 2), ("20000 100000", 1), ("900000 100000", 4), ("nonsense", 4)],
)
def test_a_container_of_version_2(eight_threads_on_four_cores: Path, quota: str, wanted: int) -> None:
    (eight_threads_on_four_cores / "cgroup" / "cpu.max").write_text(quota)
    assert cores(eight_threads_on_four_cores) == wanted


@pytest.mark.parametrize(("quota", "wanted"), [("-1", 4), ("250000", 3)])
def test_a_container_of_version_1(eight_threads_on_four_cores: Path, quota: str, wanted: int) -> None:
    folder = eight_threads_on_four_cores / "cgroup" / "cpu"
    folder.mkdir()
    (folder / "cpu.cfs_quota_us").write_text(quota)
    (folder / "cpu.cfs_period_us").write_text("100000")
    assert cores(eight_threads_on_four_cores) == wanted


def test_a_kernel_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    assert num_usable_cores(tmp_path, tmp_path) == 3
