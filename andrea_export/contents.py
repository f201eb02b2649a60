"""What a bundle holds, as far as running it needs: which model, which files, and whether they are as they were sealed.

Reads that part of the manifest, and no more: whoever runs a bundle does without pydantic, with which ``bundle`` reads
the whole of it, and which takes 16 MB and a quarter of the time that a model takes to open.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from andrea_export.checkpoint import WeightsOrigin, file_identity, sha256_of
from andrea_export.errors import BundleError, first_line
from andrea_export.ort_cpu_files import OrtCpuFiles, files_of
from andrea_export.targets import OrtPrecision
from andrea_model.config import AndreaConfig

SCHEMA = "andrea-export/manifest/3"
MANIFEST = "manifest.json"
MODEL = "model.onnx"
WEIGHTS = "model.onnx.data"
PLUGIN = "plugins/libandrea_plugins.so"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of the bundle as it was sealed."""

    sha256: str
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """A bundle folder and the part of its manifest that says what may run, and on which bytes."""

    path: Path
    verdict: str
    """Its report's: only ``pass`` may run."""
    config: AndreaConfig
    origin: WeightsOrigin
    files: Mapping[str, FileEntry]
    ort_cpu: Mapping[OrtPrecision, OrtCpuFiles]
    """The graphs for onnxruntime's CPU provider."""

    def mismatches(self, names: Sequence[str] | None = None, *, contents: bool = True) -> tuple[str, ...]:
        """One line for every file that is missing or not the one that was sealed, the manifest's own words included.

        Empty if all match. With ``names``, of these files only; without ``contents``, no more than whether they are
        there and how long they are, which reads none of them.
        """
        problems = []
        for name in self.files if names is None else names:
            entry = self.files.get(name)
            if entry is None:
                problems.append(f"{name} is not in the manifest")
                continue
            file = self.path / name
            if not file.is_file():
                problems.append(f"{name} is missing")
            elif file.stat().st_size != entry.num_bytes:
                problems.append(f"{name} has {file.stat().st_size:,} bytes, expected {entry.num_bytes:,}")
            elif contents and (problem := _other_contents(file, entry)):
                problems.append(f"{name} {problem}")
        if not problems and names is None:
            from andrea_export.canonical import read_canonical_info

            info = read_canonical_info(self.path / MODEL)
            if info is None or (info.config, info.origin) != (self.config, self.origin):
                problems.append(f"{MANIFEST} describes another model than {MODEL} holds")
        return tuple(problems)

    def check(self, names: Sequence[str] | None = None, *, contents: bool = True) -> None:
        """Raises: BundleError naming every file that ``mismatches`` finds, for the same arguments."""
        if problems := self.mismatches(names, contents=contents):
            raise BundleError(
                f"bundle {self.path} does not match its manifest: {'; '.join(problems)}",
                hint="build it again, or copy it again whole",
            )


def read_contents(path: Path) -> Contents:
    """What a bundle folder holds, by its manifest; no file of it is read.

    Raises: BundleError for a folder that is none, and a manifest that is damaged or of an unknown schema.
    """
    content = read_manifest(path)
    file = path / MANIFEST
    try:
        if type(content["verdict"]) is not str:
            raise ValueError(f"its verdict is {content['verdict']!r}")
        int8_decode = content["recipe"]["ort_cpu"]["int8_decode"]
        contents = Contents(
            path=path,
            verdict=content["verdict"],
            config=AndreaConfig(**content["config"]),
            origin=WeightsOrigin(**content["origin"]),
            files={name: _file_entry(entry) for name, entry in content["files"].items()},
            ort_cpu={precision: files_of(precision, int8_decode) for precision in content["ort_cpu"]},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BundleError(f"{file} is damaged: {first_line(error)}", hint="build the bundle again") from None
    check_names(
        file, contents.files, (MODEL, WEIGHTS, *(name for own in contents.ort_cpu.values() for name in own.all))
    )
    return contents


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest in a bundle folder as it stands there, its schema alone known to be right.

    Raises: BundleError.
    """
    file = path / MANIFEST
    if not path.is_dir():
        raise BundleError(f"bundle {path}: {'is a file, expected a folder' if path.exists() else 'no such folder'}")
    if not file.is_file():
        raise BundleError(f"{path} is no bundle: it has no {MANIFEST}", hint="make one with `andrea-export build`")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{file} cannot be read: {first_line(error)}", hint="build the bundle again") from None
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise BundleError(
            f"{file} has schema {schema!r}, expected {SCHEMA!r}",
            hint="use the version of andrea-export that wrote it",
        )
    found: dict[str, Any] = content
    return found


def check_names(file: Path, sealed: Mapping[str, FileEntry], used: Sequence[str]) -> None:
    """Raises BundleError if a manifest seals a file outside its bundle, or not all that are used."""
    for name in sealed:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise BundleError(f"{file} names a file outside the bundle: {name}")
    if unsealed := [name for name in used if name not in sealed]:
        raise BundleError(f"{file} has no sha256 for {', '.join(unsealed)}", hint="build the bundle again")


def identities(folder: Path, names: Sequence[str]) -> tuple[object, ...]:
    """What changes when one of these files is replaced, written to or removed."""
    found: list[object] = []
    for name in names:
        try:
            found.append(file_identity(folder / name))
        except OSError as error:
            found.append(error.errno)
    return tuple(found)


def _file_entry(entry: Mapping[str, Any]) -> FileEntry:
    sha256, num_bytes = entry["sha256"], entry["num_bytes"]
    if type(sha256) is not str or type(num_bytes) is not int:
        raise ValueError(f"a file's entry is {dict(entry)}")
    return FileEntry(sha256=sha256, num_bytes=num_bytes)


def _other_contents(file: Path, entry: FileEntry) -> str | None:
    try:
        found = sha256_of(file)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None if found == entry.sha256 else f"has sha256 {found[:12]}…, expected {entry.sha256[:12]}…"
