"""The bundle on disk and its manifest: what is in it, what it was made from, and whether it is still that.

Owns the schema, reading, verifying and sealing; makes none of the files.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath

from pydantic import ConfigDict, TypeAdapter, ValidationError

from andrea_export.backends.base import EngineFacts
from andrea_export.checkpoint import WeightsOrigin, file_identity, sha256_of
from andrea_export.errors import BundleError, first_line
from andrea_export.ort_cpu_files import PATTERNS as ORT_CPU_PATTERNS
from andrea_export.recipe import OrtPrecision, Recipe, recipe_as_mapping
from andrea_export.report import Verdict
from andrea_model.config import AndreaConfig

SCHEMA = "andrea-export/manifest/3"
MANIFEST = "manifest.json"
MODEL = "model.onnx"
WEIGHTS = "model.onnx.data"
REPORT = "report.json"
PLUGIN = "plugins/libandrea_plugins.so"
_LAYOUT = (MANIFEST, MODEL, WEIGHTS, REPORT, PLUGIN, "engines/*.plan", *ORT_CPU_PATTERNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of the bundle as it was sealed."""

    sha256: str
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginFacts:
    """What the plugin library was compiled from, with what, and for which GPUs."""

    sources_sha256: str
    nvcc_version: str
    host_compiler: str
    architectures: tuple[str, ...]
    tensorrt_headers: str
    """``abi`` (this project's declarations) or the version of NVIDIA's headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEntry:
    """One engine of the bundle: its file, and what its build proved."""

    file: str
    native_twin: bool
    facts: EngineFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything that had a say in a bundle. ``schema`` comes first: a reader stops at one it does not know."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    schema: str = SCHEMA
    verdict: Verdict
    config: AndreaConfig
    origin: WeightsOrigin
    recipe: Recipe
    files: Mapping[str, FileEntry]
    weights_sha256: Mapping[str, str]
    """Parameter name → sha256 of its little-endian fp32 bytes, taken from the torch model, not from the ONNX file."""
    plugin: PluginFacts | None = None
    engines: tuple[EngineEntry, ...] = ()
    ort_cpu: tuple[OrtPrecision, ...] = ()
    """The precisions of the graphs for onnxruntime's CPU provider; ``ort_cpu_files`` names the files."""
    target_gpus: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """File → compute capabilities it is for; ``9.0 PTX`` is compiled by the driver for any GPU from 9.0 on."""
    steps: Mapping[str, str] = field(default_factory=dict)
    """Step → hash of everything it was made from; a later build reuses a step whose hash is the same."""
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)


_MANIFEST = TypeAdapter(Manifest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A bundle folder whose manifest has been read."""

    path: Path
    manifest: Manifest

    @property
    def model(self) -> Path:
        """The canonical ONNX file."""
        return self.path / MODEL

    @property
    def config(self) -> AndreaConfig:
        """The model's shape."""
        return self.manifest.config

    @property
    def origin(self) -> WeightsOrigin:
        """Where the weights came from."""
        return self.manifest.origin

    def mismatches(self, names: Sequence[str] | None = None, *, contents: bool = True) -> tuple[str, ...]:
        """One line for every file that is missing or not the one that was sealed, the manifest's own words included.

        Empty if all match. With ``names``, of these files only; without ``contents``, no more than whether they are
        there and how long they are, which reads none of them.
        """
        problems = []
        for name in self.manifest.files if names is None else names:
            entry = self.manifest.files.get(name)
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

            info = read_canonical_info(self.model)
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


def identities(folder: Path, names: Sequence[str]) -> tuple[object, ...]:
    """What changes when one of these files is replaced, written to or removed."""
    found: list[object] = []
    for name in names:
        try:
            found.append(file_identity(folder / name))
        except OSError as error:
            found.append(error.errno)
    return tuple(found)


def _other_contents(file: Path, entry: FileEntry) -> str | None:
    try:
        found = sha256_of(file)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None if found == entry.sha256 else f"has sha256 {found[:12]}…, expected {entry.sha256[:12]}…"


def open_bundle(path: Path, *, verify: bool = True) -> Bundle:
    """The bundle in a folder, every file checked against the manifest unless told not to.

    Raises: BundleError for a folder that is none, a manifest that is damaged or of an unknown schema, and (with
    ``verify``) for files that do not match, all named.
    """
    manifest_file = path / MANIFEST
    if not path.is_dir():
        raise BundleError(f"bundle {path}: {'is a file, expected a folder' if path.exists() else 'no such folder'}")
    if not manifest_file.is_file():
        raise BundleError(f"{path} is no bundle: it has no {MANIFEST}", hint="make one with `andrea-export build`")
    bundle = Bundle(path=path, manifest=_read_manifest(manifest_file))
    if verify:
        bundle.check()
    return bundle


def stranger_in(folder: Path) -> str | None:
    """The first thing in a folder that no build made; None for an empty folder and for a bundle, damaged or not.

    ``manifest.json`` is a common name, so having one does not make a folder a bundle: every file must have a name that
    bundles have, and there must be a model or a manifest of ours.
    """
    names = [file.relative_to(folder).as_posix() for file in sorted(folder.rglob("*")) if not file.is_dir()]
    for name in names:
        if not any(PurePosixPath(name).match(pattern) and name.count("/") == pattern.count("/") for pattern in _LAYOUT):
            return name
    if MANIFEST in names and MODEL not in names:
        with (folder / MANIFEST).open("rb") as file:
            if SCHEMA.encode() not in file.read(4096):
                return MANIFEST
    return None


def seal(path: Path, manifest: Manifest) -> None:
    """Writes the manifest beside the files it describes."""
    mapping = {**asdict(manifest), "recipe": recipe_as_mapping(manifest.recipe)}
    (path / MANIFEST).write_text(json.dumps(mapping, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def file_entry(file: Path) -> FileEntry:
    """A file as a manifest states it."""
    return FileEntry(sha256=sha256_of(file), num_bytes=file.stat().st_size)


def machine_facts() -> dict[str, str]:
    """What of this machine can matter to what was built on it."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
    }


def _read_manifest(file: Path) -> Manifest:
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
    try:
        manifest: Manifest = _MANIFEST.validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise BundleError(
            f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}", hint="build the bundle again"
        ) from None
    for name in manifest.files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise BundleError(f"{file} names a file outside the bundle: {name}")
    used = [MODEL, WEIGHTS, REPORT, *([PLUGIN] if manifest.plugin else []), *(entry.file for entry in manifest.engines)]
    if unsealed := [name for name in used if name not in manifest.files]:
        raise BundleError(f"{file} has no sha256 for {', '.join(unsealed)}", hint="build the bundle again")
    return manifest
