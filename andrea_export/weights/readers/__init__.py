"""Readers of weights, one file a family: each owns its foreign names, shapes and orientation.

To add a family: a ``CheckpointReader`` in a file of its own, a kind in ``recognise``, and a line in ``READERS``.
"""

from collections.abc import Mapping
from pathlib import Path

from andrea_export.core.errors import CheckpointError
from andrea_export.weights.readers.andrea import AndreaReader
from andrea_export.weights.readers.base import CheckpointReader
from andrea_export.weights.readers.recognise import FileKind, no_order, recognise

READERS: Mapping[FileKind, CheckpointReader] = {
    "checkpoint": AndreaReader(),
}


def reader_of(path: Path) -> CheckpointReader:
    """The reader of a file's family; of a file of no family, that of our own, which says what is wrong with it.

    Raises: CheckpointError for a file that is missing, or of a family whose weights nobody can read.
    """
    if not path.is_file():
        raise CheckpointError(f"checkpoint {path}: {'is a folder' if path.is_dir() else 'no such file'}")
    kind = recognise(path)
    if kind == "published-checkpoint":
        raise no_order(path)
    return READERS.get(kind, READERS["checkpoint"])
