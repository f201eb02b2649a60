"""A file's sha256 is read once, and again as soon as the file may have changed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from andrea_export.core.hashing import file_identity, sha256_of


def test_a_files_sha256(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * ((1 << 22) + 3))  # more than one chunk
    assert sha256_of(path) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_an_unchanged_file_is_not_read_again_and_a_changed_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    first, identity = sha256_of(path), file_identity(path)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", lambda *_: pytest.fail("it was read again"))
        assert sha256_of(path) == first
    path.write_bytes(b"three")
    assert file_identity(path) != identity
    assert sha256_of(path) == hashlib.sha256(b"three").hexdigest()
