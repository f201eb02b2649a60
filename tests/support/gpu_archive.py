"""Archives in parts of at most 60 MB, with checksums, for a machine without network: wheels packed into them here, and
whole ones joined and unpacked there.

    gpu_archive.py pack WHEELS OUT NAME     OUT/NAME.tar.xz.000, .001, … and OUT/SHA256SUMS
    gpu_archive.py join PARTS SITE          unpacks each complete group into SITE/NAME, prints that folder

NAME ends in the Python it is for, as ``-cp312``; another Python leaves it out. Standard library only: the joining side
has nothing else. xz packs TensorRT-RTX's library tighter than its wheel does.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

PART_BYTES = 60_000_000
_SUMS = "SHA256SUMS"


def pack(wheels: Path, out: Path, name: str) -> list[Path]:
    """The parts of one archive holding the wheels' content, unpacked; SHA256SUMS is brought up to date."""
    for old in out.glob(f"{name}.tar.xz.*"):
        old.unlink()
    writer = _PartWriter(out, f"{name}.tar.xz")
    with (
        lzma.open(cast("IO[bytes]", writer), "wb", preset=9) as compressed,
        tarfile.open(fileobj=compressed, mode="w|") as archive,
    ):
        for wheel in sorted(wheels.glob("*.whl")):
            with zipfile.ZipFile(wheel) as content:
                for member in sorted(content.infolist(), key=lambda one: one.filename):
                    if member.is_dir():
                        continue
                    entry = tarfile.TarInfo(member.filename)
                    entry.size = member.file_size
                    entry.mode = (member.external_attr >> 16) & 0o777 or 0o644
                    with content.open(member) as file:
                        archive.addfile(entry, file)
    kept = [line for line in _read_sums(out) if not line[1].startswith(f"{name}.tar.xz.")]
    sums = [*kept, *((_sha256(part), part.name) for part in writer.parts)]
    (out / _SUMS).write_text("".join(f"{digest}  {file}\n" for digest, file in sorted(sums, key=lambda one: one[1])))
    return writer.parts


def join(parts: Path, site: Path) -> Iterator[Path]:
    """The folders of the groups that are complete here; the others are named on stderr with what is wrong."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for digest, file in _read_sums(parts):
        groups.setdefault(file.rsplit(".tar.xz.", 1)[0], []).append((digest, file))
    if not groups:
        sys.stderr.write(f"{parts}: no {_SUMS}, so no parts to join\n")
    for name, files in sorted(groups.items()):
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        if not name.endswith(f"-{python}"):
            sys.stderr.write(f"not available: {name}: this is {python}\n")
            continue
        wrong = [file for _, file in files if not (parts / file).is_file()]
        damaged = [file for digest, file in files if file not in wrong and _sha256(parts / file) != digest]
        if wrong or damaged:
            missing = f"missing: {', '.join(wrong)}" if wrong else f"damaged: {', '.join(damaged)}"
            sys.stderr.write(f"not available: {name}: {missing}\n")
            continue
        folder = site / name
        in_order = [parts / file for _, file in sorted(files, key=lambda one: one[1])]
        with (
            _JoinedParts(in_order) as joined,
            lzma.open(cast("IO[bytes]", joined)) as compressed,
            tarfile.open(fileobj=compressed, mode="r|") as archive,
        ):
            archive.extractall(folder, filter="data")
        yield folder


class _PartWriter(io.RawIOBase):
    """Writes one stream into numbered files of at most PART_BYTES."""

    def __init__(self, folder: Path, stem: str) -> None:
        self._folder, self._stem = folder, stem
        self._left = 0
        self.parts: list[Path] = []

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        content = memoryview(data).cast("B")
        written = 0
        while written < len(content):
            if self._left == 0:
                self.parts.append(self._folder / f"{self._stem}.{len(self.parts):03d}")
                self.parts[-1].write_bytes(b"")
                self._left = PART_BYTES
            piece = content[written : written + self._left]
            with self.parts[-1].open("ab") as file:
                file.write(piece)
            written += len(piece)
            self._left -= len(piece)
        return written


class _JoinedParts(io.RawIOBase):
    """Reads numbered files as one stream."""

    def __init__(self, parts: list[Path]) -> None:
        self._rest = list(parts)
        self._file: IO[bytes] | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        while self._file is not None or self._rest:
            if self._file is None:
                self._file = self._rest.pop(0).open("rb")
            data = self._file.read(len(view))
            if data:
                view[: len(data)] = data
                return len(data)
            self._file.close()
            self._file = None
        return 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        super().close()


def _read_sums(folder: Path) -> list[tuple[str, str]]:
    file = folder / _SUMS
    if not file.is_file():
        return []
    return [(line[:64], line[66:]) for line in file.read_text().splitlines()]


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def main() -> None:
    """Packs or joins."""
    command, *arguments = sys.argv[1:]
    if command == "pack" and len(arguments) == 3:
        wheels, out, name = Path(arguments[0]), Path(arguments[1]), arguments[2]
        for part in pack(wheels, out, name):
            sys.stdout.write(f"{part} {part.stat().st_size} bytes\n")
    elif command == "join" and len(arguments) == 2:
        for folder in join(Path(arguments[0]), Path(arguments[1])):
            sys.stdout.write(f"{folder}\n")
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
