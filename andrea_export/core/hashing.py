"""What tells files apart: the sha256 of their bytes, and the cheap identity of a file that has not been touched."""

import functools
import hashlib
from pathlib import Path


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hex. A file that has not changed since the last call is not read again."""
    return _sha256_of(path.resolve(), *file_identity(path))


def file_identity(path: Path) -> tuple[int, ...]:
    """What changes when a file is replaced or written to. Raises: OSError if it is not there."""
    facts = path.stat()
    return (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


@functools.lru_cache(maxsize=32)
def _sha256_of(path: Path, *_identity: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()
