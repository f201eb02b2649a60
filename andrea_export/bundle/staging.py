"""Output that is whole or not there: it is written beside its final place, and the two change places at the end.

A process killed at any moment leaves the old output or the new one, and perhaps a hidden folder that the next build
removes. Owns what may be replaced: nothing that a build did not make.
"""

import ctypes
import errno
import fcntl
import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from andrea_export.bundle.layout import stranger_in
from andrea_export.core.errors import UsageError

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # <fcntl.h>, <linux/fs.h>
_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)  # a filesystem or kernel without it


def check_output(output: Path) -> None:
    """Raises UsageError unless a bundle may be written there: nothing, an empty folder, or an earlier bundle."""
    place = Path(os.path.realpath(output))
    if os.path.ismount(place):
        raise UsageError(f"output {output} is a mount point, which cannot be replaced", hint="name a folder inside it")
    if place.is_dir():
        if stranger := stranger_in(place):
            raise UsageError(
                f"output {output} is a folder with other things in it: {stranger} is nothing a build made",
                hint="name a new folder, or empty this one",
            )
    elif place.exists():
        raise UsageError(f"output {output} is a file, expected a folder or nothing", hint="name a new folder")
    ancestor = next(parent for parent in place.parents if os.path.lexists(parent))
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

    A symbolic link is followed: what it points to is replaced, the link stays.
    Raises: UsageError if nothing can be written there, or something came to be there that a build did not make.
    """
    place = Path(os.path.realpath(output))
    missing = [parent for parent in place.parents if not parent.exists()]
    staging = Staging(folder=place.with_name(f".{place.name}.building-{secrets.token_hex(8)}"))
    try:  # from before the folder exists: a signal may come between making it and the next line
        with _locked_folder(place, output, staging):
            yield staging
            if staging.replaces:
                check_output(output)  # a minute has passed since the first look
                _exchange(staging.folder, place)
    except BaseException:  # also KeyboardInterrupt: nothing half-written stays
        shutil.rmtree(staging.folder, ignore_errors=True)
        for parent in missing:  # innermost first, as far as nothing else has come into them since
            try:
                parent.rmdir()
            except OSError:
                break
        raise
    shutil.rmtree(staging.folder, ignore_errors=True)  # the old bundle, or a new one that was not needed


@contextmanager
def _locked_folder(place: Path, output: Path, staging: Staging) -> Iterator[None]:
    """Makes the staging folder and holds a lock on it, which says that its build is alive; clears what dead ones left.

    A lock, because process numbers repeat: in a container every build has the same one.
    """
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _lock(place.parent):  # so that no other build sees the new folder before it is locked
            _remove_stale(place)
            staging.folder.mkdir()
            held = os.open(staging.folder, os.O_RDONLY)
            fcntl.flock(held, fcntl.LOCK_EX)
    except OSError as error:
        raise UsageError(f"output {output} cannot be written: {error.strerror or error}") from None
    try:
        yield
    finally:
        os.close(held)


def _remove_stale(place: Path) -> None:
    name = glob.escape(place.name)
    for left in place.parent.glob(f".{name}.building-*"):
        held = os.open(left, os.O_RDONLY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue  # a build that is alive
        finally:
            os.close(held)
        shutil.rmtree(left, ignore_errors=True)
    for old in place.parent.glob(f".{name}.old-*"):  # see _exchange_by_steps
        if place.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(place)


def _exchange(new: Path, place: Path) -> None:
    """Puts ``new`` in its place in one step; what was there is then where ``new`` was."""
    if not place.exists():
        new.rename(place)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        done = libc.renameat2(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(place), _RENAME_EXCHANGE)
        if done == 0:
            return
        code = ctypes.get_errno()
        if code not in _NO_EXCHANGE:
            raise OSError(code, os.strerror(code), str(place))
    _exchange_by_steps(new, place)


def _exchange_by_steps(new: Path, place: Path) -> None:
    """The same in two renames, where the filesystem has no exchange; the next build mends a kill between them."""
    old = place.with_name(f".{place.name}.old-{new.name.rpartition('-')[2]}")
    place.rename(old)
    try:
        new.rename(place)
    except BaseException:
        old.rename(place)
        raise
    old.rename(new)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)
