"""Output that is whole or not there: it is written beside its final place and renamed at the end.

A process killed at any moment leaves the old output or none, and a hidden folder that the next build removes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from andrea_export.bundle import MANIFEST
from andrea_export.errors import UsageError


def check_output(output: Path) -> None:
    """Raises UsageError unless a bundle may be written there: nothing, an empty folder, or an earlier bundle."""
    if output.is_dir():
        if any(output.iterdir()) and not (output / MANIFEST).is_file():
            raise UsageError(
                f"output {output} is a folder with other things in it",
                hint="name a new folder, or empty this one",
            )
    elif output.exists() or output.is_symlink():
        raise UsageError(f"output {output} is a file, expected a folder or nothing", hint="name a new folder")
    ancestor = _first_existing(output.parent)
    if not ancestor.is_dir():
        raise UsageError(f"output {output}: {ancestor} is a file", hint="name a folder")
    if not os.access(ancestor, os.W_OK | os.X_OK, effective_ids=True):
        raise UsageError(
            f"output {output}: {ancestor} is not writable", hint="choose another folder, or its permissions"
        )


@dataclass(slots=True, kw_only=True)
class Staging:
    """A folder being filled; it takes the output's place unless it turns out that the old one is still good."""

    folder: Path
    replaces: bool = True


@contextmanager
def staged(output: Path) -> Iterator[Staging]:
    """A new folder that becomes ``output`` when the block ends well, and is removed when it does not.

    Raises: UsageError if nothing can be written there.
    """
    output = output.absolute()
    made_parent = _first_missing(output.parent)
    staging = output.with_name(f".{output.name}.building-{os.getpid()}")
    try:  # from before the folder exists: a signal may come between making it and the next line
        _make(output, staging)
        state = Staging(folder=staging)
        yield state
        if state.replaces:
            _replace(output, staging)
        else:
            shutil.rmtree(staging)
    except BaseException:  # also KeyboardInterrupt: nothing half-written stays
        shutil.rmtree(staging, ignore_errors=True)
        if made_parent is not None:
            _remove_empty(output.parent, made_parent)
        raise


def _make(output: Path, staging: Path) -> None:
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(output)
        staging.mkdir()
    except OSError as error:
        raise UsageError(f"output {output} cannot be written: {error.strerror or error}") from None


def _remove_empty(folder: Path, last: Path) -> None:
    """Removes the folders that were made for the output, as far as nothing else has come into them since."""
    for made in (folder, *folder.parents):
        try:
            made.rmdir()
        except OSError:
            return
        if made == last:
            return


def _replace(output: Path, staging: Path) -> None:
    old = output.with_name(f".{output.name}.old-{os.getpid()}")
    if output.exists():
        output.rename(old)
    staging.rename(output)
    shutil.rmtree(old, ignore_errors=True)


def _remove_stale(output: Path) -> None:
    """Clears what killed builds left: a half-built folder goes, an old bundle whose place is empty comes back."""
    for kind in ("building", "old"):
        for left in output.parent.glob(f".{output.name}.{kind}-*"):
            pid = left.name.rpartition("-")[2]
            if not pid.isdigit() or _is_alive(int(pid)):
                continue
            if kind == "old" and not output.exists():
                left.rename(output)
            else:
                shutil.rmtree(left, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _first_existing(folder: Path) -> Path:
    return next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())


def _first_missing(folder: Path) -> Path | None:
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    return missing[-1] if missing else None
