"""The novels of Jane Austen as bytes, read from Debian's package r-cran-janeaustenr. Public domain; nothing else here.

apt-get download r-cran-janeaustenr && dpkg-deb -x r-cran-janeaustenr_*.deb austen
# then pass austen/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

_HEADER_BYTES = 23  # "X\n", then version, writer, oldest reader, length of the encoding's name, and "UTF-8"
_STRING_VECTOR, _TYPE_MASK = 16, 0xFF
_MISSING = 0xFFFFFFFF


def novels_from_rdb(path: Path) -> list[bytes]:
    """Every novel in the file, lines joined with newlines.

    Raises: ValueError for a file of another layout.
    Source: R Internals, section "Serialization Formats" (XDR, version 3); each object of a lazy-load database is its
    length as a big-endian u32 and a zlib stream.
    """
    rest, novels = path.read_bytes(), []
    while rest:
        decompressor = zlib.decompressobj()
        content = decompressor.decompress(rest[4:])
        if len(content) != int.from_bytes(rest[:4], "big"):
            raise ValueError(f"{path}: an object of {len(content)} bytes, expected {int.from_bytes(rest[:4], 'big')}")
        novels.append(b"\n".join(_strings(content, path)) + b"\n")
        rest = decompressor.unused_data
    return novels


def _strings(content: bytes, path: Path) -> Iterator[bytes]:
    """The elements of the one character vector that an object holds."""
    at = _HEADER_BYTES

    def word() -> int:
        nonlocal at
        at += 4
        return int.from_bytes(content[at - 4 : at], "big")

    kind = word()
    if kind & _TYPE_MASK != _STRING_VECTOR:
        raise ValueError(f"{path}: an R object of type {kind & _TYPE_MASK}, expected a character vector")
    for _ in range(word()):
        word()  # the element's own type and encoding
        length = word()
        if length != _MISSING:
            yield content[at : at + length]
            at += length
