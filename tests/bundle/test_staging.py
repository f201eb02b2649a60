"""Output is whole or not there: refusals before work, no trace of a failure, an old bundle kept through a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from andrea_export.bundle.layout import MANIFEST, SCHEMA
from andrea_export.bundle.staging import _exchange_by_steps, check_output, staged
from andrea_export.core.errors import UsageError

OLD = f'{{"schema": "{SCHEMA}", "old": true}}'


def old_bundle(path: Path) -> Path:
    path.mkdir()
    (path / MANIFEST).write_text(OLD)
    return path


def test_a_new_output_appears_whole(tmp_path: Path) -> None:
    output = tmp_path / "deep" / "down" / "bundle"
    with staged(output) as staging:
        (staging.folder / "file").write_text("x")
        assert not output.exists()
    assert (output / "file").read_text() == "x"
    assert list(output.parent.iterdir()) == [output]


def test_a_failure_leaves_no_trace_and_the_old_bundle(tmp_path: Path) -> None:
    output = old_bundle(tmp_path / "bundle")
    with pytest.raises(RuntimeError), staged(output) as staging:
        (staging.folder / "file").write_text("x")
        raise RuntimeError
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]
    assert (output / MANIFEST).read_text() == OLD


def test_a_failure_removes_the_parents_it_made(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), staged(tmp_path / "deep" / "down" / "bundle"):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_what_is_still_good_is_not_touched(tmp_path: Path) -> None:
    output = old_bundle(tmp_path / "bundle")
    before = (output / MANIFEST).stat()
    with staged(output) as staging:
        staging.replaces = False
    after = (output / MANIFEST).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert list(tmp_path.iterdir()) == [output]


def test_a_killed_build_leaves_the_old_bundle_and_the_next_one_clears_up(tmp_path: Path) -> None:
    output = old_bundle(tmp_path / "bundle")
    program = (
        "import sys, time; from pathlib import Path; from andrea_export.bundle.staging import staged\n"
        "with staged(Path(sys.argv[1])) as s:\n"
        "    (s.folder / 'half').write_text('x'); print('ready', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(output)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert (output / MANIFEST).read_text() == OLD
    assert len(list(tmp_path.iterdir())) == 2
    with staged(output) as staging:
        (staging.folder / MANIFEST).write_text("new")
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]
    assert (output / MANIFEST).read_text() == "new"


def test_without_an_exchange_a_kill_between_two_renames_loses_nothing(tmp_path: Path) -> None:
    """Then the old bundle lies beside its place: the next build puts it back before it starts."""
    old_bundle(tmp_path / ".bundle.old-x")
    output = tmp_path / "bundle"
    with pytest.raises(RuntimeError), staged(output):
        assert (output / MANIFEST).read_text() == OLD
        raise RuntimeError
    assert (output / MANIFEST).read_text() == OLD


def test_without_an_exchange_a_failed_rename_puts_the_old_bundle_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = old_bundle(tmp_path / "bundle")
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if ".building-" in self.name:
            raise KeyboardInterrupt
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    new = tmp_path / ".bundle.building-x"
    new.mkdir()
    with pytest.raises(KeyboardInterrupt):
        _exchange_by_steps(new, output)
    assert (output / MANIFEST).read_text() == OLD
    monkeypatch.undo()
    _exchange_by_steps(new, output)
    assert list(output.iterdir()) == [] and (new / MANIFEST).read_text() == OLD


def test_a_build_in_progress_is_not_cleared_and_a_dead_one_is_whatever_its_process_number(tmp_path: Path) -> None:
    dead = tmp_path / f".bundle.building-{os.getpid()}"
    dead.mkdir()
    with staged(tmp_path / "bundle") as alive:
        assert not dead.exists()
        with staged(tmp_path / "bundle") as other:
            assert alive.folder.is_dir() and other.folder != alive.folder
        assert alive.folder.is_dir()


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    target = old_bundle(tmp_path / "target")
    link = tmp_path / "link"
    link.symlink_to(target)
    with staged(link) as staging:
        (staging.folder / MANIFEST).write_text("new")
    assert link.is_symlink() and (target / MANIFEST).read_text() == "new"
    assert {file.name for file in tmp_path.iterdir()} == {"target", "link"}


def test_the_bundle_is_as_readable_as_any_folder(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    with staged(tmp_path / "bundle"):
        pass
    assert (tmp_path / "bundle").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_names_that_are_patterns_are_names(tmp_path: Path) -> None:
    other = tmp_path / ".a.building-x"
    other.mkdir()
    with staged(tmp_path / "[a]"):
        pass
    assert other.is_dir() and (tmp_path / "[a]").is_dir()


@pytest.mark.parametrize("name", ["manifest.json", "notes.txt", "engines/mine.txt", "plugins/other.so"])
def test_a_folder_with_anything_a_build_did_not_make_is_refused_also_at_the_end(tmp_path: Path, name: str) -> None:
    """A browser extension has a manifest.json too."""
    output = tmp_path / "bundle"
    file = output / name
    file.parent.mkdir(parents=True)
    file.write_text("precious")
    with pytest.raises(UsageError, match=f"{name} is nothing a build made"):
        check_output(output)
    with pytest.raises(UsageError, match="nothing a build made"), staged(output):
        pass
    assert file.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [output]


def test_a_mount_point_is_refused() -> None:
    with pytest.raises(UsageError, match="mount point"):
        check_output(Path("/proc"))


def test_outputs_that_would_destroy_something_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "thesis.tex").write_text("precious")
    for output, message in (
        (file, "is a file"),
        (folder, "other things in it"),
        (file / "below", "is a file"),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            check_output(output)
        assert caught.value.hint
    check_output(tmp_path / "new" / "folder")
    check_output(old_bundle(tmp_path / "bundle"))


def test_a_folder_without_write_permission_is_refused() -> None:
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)  # nobody: root may write anywhere
    try:
        with pytest.raises(UsageError, match="/ is not writable"):
            check_output(Path("/bundle"))
    finally:
        if root:
            os.seteuid(0)


def test_an_output_that_cannot_be_made_is_one_clear_error() -> None:
    with pytest.raises(UsageError, match="cannot be written"), staged(Path("/proc/bundle")):
        raise AssertionError("nothing can be built there")


def test_a_failure_leaves_what_others_put_beside_it(tmp_path: Path) -> None:
    output = tmp_path / "new" / "deep" / "out"
    with pytest.raises(RuntimeError, match="planted"), staged(output):
        (tmp_path / "new" / "notes.txt").write_text("of another process")
        raise RuntimeError("planted")
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "notes.txt"]


def test_a_signal_right_after_the_folder_is_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = Path.mkdir

    def interrupted(path: Path, *arguments: object, **options: object) -> None:
        mkdir(path, *arguments, **options)  # type: ignore[arg-type]
        if ".building-" in path.name:
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "mkdir", interrupted)
    with pytest.raises(KeyboardInterrupt), staged(tmp_path / "out"):
        pass
    assert list(tmp_path.iterdir()) == []
