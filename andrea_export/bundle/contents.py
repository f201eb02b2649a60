"""What a bundle holds, as far as running it needs: which model, which files, and whether they are as they were sealed.

Reads the part that running needs, and no more, so
that a program which loads a bundle does without pydantic, with which ``manifest`` reads the whole (ARCHITECTURE.md).
"""

import json
import reprlib
import stat
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path, PurePosixPath
from types import NoneType
from typing import Any, TypeVar, get_args

from andrea_export.bundle.layout import MANIFEST, MODEL, PLUGIN, REPORT, SCHEMA, WEIGHTS
from andrea_export.core.errors import BundleError, first_line
from andrea_export.core.hashing import file_identity, sha256_of
from andrea_export.core.precision import ORT_PRECISIONS, OrtPrecision
from andrea_export.targets.ort_cpu.files import LIBRARY, OrtCpuFiles, files_of
from andrea_export.tokens.files import TokenizerFacts, TokenizerKind, open_tokenizer
from andrea_export.tokens.tokenizer import Tokenizer
from andrea_export.weights.origin import WeightsOrigin
from andrea_model.config import AndreaConfig

_MAKE_ONE = "make one with `andrea-export build`"
_JSON_NAMES: Mapping[type, str] = {str: "a string", int: "a whole number", list: "a list", dict: "an object"}
Kind = TypeVar("Kind")


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
    text: TokenizerFacts = field(default_factory=TokenizerFacts)
    """How text becomes tokens."""

    def tokenizer(self) -> Tokenizer:
        """The tokenizer it holds. Raises: UsageError (it has none), BundleError (damaged), BackendUnavailable."""
        if self.text.file is None:
            return open_tokenizer(self.text.kind, None, f"bundle {self.path}")
        self.check([self.text.file])
        file = self.path / self.text.file
        return open_tokenizer(self.text.kind, file.read_text(encoding="utf-8"), str(file))

    def mismatches(self, names: Sequence[str] | None = None, *, hashed: bool = True) -> tuple[str, ...]:
        """One line for every file that is missing or not the one that was sealed, the manifest's own words included.

        Empty if all match. With ``names``, of these files only; without ``hashed``, no more than whether they are there
        and how long they are, which reads none of them.
        """
        problems = []
        for name in self.files if names is None else names:
            entry = self.files.get(name)
            if entry is None:
                problems.append(f"{name} is not in the manifest")
            elif problem := _mismatch(self.path / name, entry, hashed=hashed):
                problems.append(f"{name} {problem}")
        if not problems and names is None:
            from andrea_export.graph.canonical.metadata import read_canonical_info

            info = read_canonical_info(self.path / MODEL)
            if info is None or (info.config, info.origin) != (self.config, self.origin):
                problems.append(f"{MANIFEST} describes another model than {MODEL} holds")
        return tuple(problems)

    def check(self, names: Sequence[str] | None = None, *, hashed: bool = True) -> None:
        """Raises: BundleError naming every file that ``mismatches`` finds, for the same arguments."""
        if problems := self.mismatches(names, hashed=hashed):
            raise BundleError(
                f"bundle {self.path} does not match its manifest: {'; '.join(problems)}",
                hint="build it again, or copy it again whole",
            )

    def largest_error(self, candidate: str, layer: str) -> float:
        """The error this layer may have against the fp64 reference, by the report's budget. Reads the report.

        Raises: BundleError if the report cannot be read, or does not say.
        """
        file = self.path / REPORT
        try:
            rows = json.loads(file.read_text(encoding="utf-8"))["layers"]
            budgets = [row["budget"] for row in rows if (row["candidate"], row["name"]) == (candidate, layer)]
            (largest,) = [float(budget["max_abs"]) for budget in budgets]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BundleError(
                f"{file} has no budget for {layer} of {candidate}: {first_line(error)}", hint="build the bundle again"
            ) from None
        return largest

    def check_names(self, others: Sequence[str] = ()) -> None:
        """Raises BundleError if a sealed file is outside the folder, or one that this bundle must have is not sealed.

        ``others``: what it must have beside its model, its report and its graphs.
        """
        manifest = self.path / MANIFEST
        for name in self.files:
            if not name.isprintable():
                raise BundleError(f"{manifest} names a file that cannot have that name: {name!a}")
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise BundleError(f"{manifest} names a file outside the bundle: {name}")
        own = (self.text.file,) if self.text.file is not None else ()
        used = (MODEL, WEIGHTS, REPORT, *own, *(name for own in self.ort_cpu.values() for name in own.all), *others)
        if unsealed := [name for name in used if name not in self.files]:
            raise BundleError(f"{manifest} has no sha256 for {', '.join(unsealed)}", hint="build the bundle again")


def read_contents(path: Path) -> Contents:
    """What a bundle folder holds, by its manifest; no other file of it is read.

    Raises: BundleError for a folder that is not a bundle, and a manifest that is damaged or of an unknown schema.
    """
    content = read_manifest(path)
    try:
        contents = Contents(
            path=path,
            verdict=_value(content, "verdict", str),
            config=AndreaConfig(**_fields(content, "config", AndreaConfig)),
            origin=_origin(_fields(content, "origin", WeightsOrigin)),
            files={name: _file_entry(entry) for name, entry in _value(content, "files", dict).items()},
            ort_cpu=_graphs(content),
            text=_text(content),
        )
    except ValueError as error:
        raise BundleError(f"{path / MANIFEST} is damaged: {first_line(error)}", hint="build the bundle again") from None
    libraries = {"plugin": PLUGIN, "cpu_library": LIBRARY}
    contents.check_names([file for key, file in libraries.items() if content.get(key) is not None])
    return contents


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest in a bundle folder as it stands there, its schema alone known to be right.

    Raises: BundleError.
    """
    file = path / MANIFEST
    if not path.is_dir():
        problem = "is a file, expected a folder" if path.exists() else "no such folder"
        raise BundleError(f"bundle {path}: {problem}", hint=_MAKE_ONE)
    if not file.is_file():
        raise BundleError(f"{path} is not a bundle: it has no {MANIFEST}", hint=_MAKE_ONE)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{file} cannot be read: {first_line(error)}", hint="build the bundle again") from None
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise BundleError(
            f"{file} has schema {reprlib.repr(schema)}, expected {SCHEMA!r}",
            hint="build it again, or use the version of andrea-export that wrote it",
        )
    found: dict[str, Any] = content
    return found


def identities(folder: Path, names: Sequence[str]) -> tuple[object, ...]:
    """What changes when one of these files is replaced, written to or removed."""
    found: list[object] = []
    for name in names:
        try:
            found.append(file_identity(folder / name))
        except OSError as error:
            found.append(error.errno)
    return tuple(found)


def _mismatch(file: Path, entry: FileEntry, *, hashed: bool) -> str | None:
    """What is wrong with a file, if anything is."""
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):
            return "is not a file"
        if found.st_size != entry.num_bytes:
            return f"has {found.st_size:,} bytes, expected {entry.num_bytes:,}"
        digest = sha256_of(file) if hashed else entry.sha256
    except (FileNotFoundError, NotADirectoryError):
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None if digest == entry.sha256 else f"has sha256 {digest[:12]}…, expected {entry.sha256[:12]}…"


def _value(content: Mapping[str, Any], key: str, kind: type[Kind]) -> Kind:
    """The value of a key. Raises: ValueError if it is missing or of another type."""
    if key not in content:
        raise ValueError(f"it has no {key}")
    value = content[key]
    if type(value) is not kind:
        raise ValueError(f"{key} is {reprlib.repr(value)}, expected {_JSON_NAMES[kind]}")
    return value


def _fields(content: Mapping[str, Any], key: str, kind: type) -> dict[str, Any]:
    """The object under a key, which has the fields of a dataclass and no others. Raises: ValueError."""
    found: dict[str, Any] = _value(content, key, dict)
    known = {field.name: field.default is MISSING for field in fields(kind)}
    for name in (*found, *known):
        if name not in known:
            raise ValueError(f"{key} has an unknown {reprlib.repr(name)}")
        if name not in found and known[name]:
            raise ValueError(f"{key} has no {name}")
    return found


def _file_entry(content: object) -> FileEntry:
    if not isinstance(content, dict) or set(content) != {"sha256", "num_bytes"}:
        raise ValueError(f"a file's entry is {reprlib.repr(content)}, expected sha256 and num_bytes")
    return FileEntry(sha256=_value(content, "sha256", str), num_bytes=_value(content, "num_bytes", int))


def _origin(content: Mapping[str, Any]) -> WeightsOrigin:
    kinds = {"seed": (int, NoneType), "untrained": (bool,)}
    for key, value in content.items():
        if type(value) not in kinds.get(key, (str, NoneType)):
            raise ValueError(f"the origin's {key} is {reprlib.repr(value)}")
    return WeightsOrigin(**content)


def _text(content: Mapping[str, Any]) -> TokenizerFacts:
    """How text becomes tokens; by bytes, where a bundle from before there were others does not say."""
    if "tokenizer" not in content:
        return TokenizerFacts()
    found = _fields(content, "tokenizer", TokenizerFacts)
    kind, stop = _value(found, "kind", str), _value(found, "stop", list)
    if kind not in get_args(TokenizerKind) or not all(type(token) is int for token in stop):
        raise ValueError(f"the tokenizer is {reprlib.repr(found)}")
    known: Any = kind
    return TokenizerFacts(kind=known, stop=tuple(stop))


def _graphs(content: Mapping[str, Any]) -> dict[OrtPrecision, OrtCpuFiles]:
    built = _value(content, "ort_cpu", list)
    if strange := [precision for precision in built if precision not in ORT_PRECISIONS]:
        raise ValueError(f"ort_cpu has {reprlib.repr(strange[0])}, expected {', '.join(ORT_PRECISIONS)}")
    if len(set(built)) != len(built):
        raise ValueError(f"ort_cpu names one precision twice: {', '.join(built)}")
    return {precision: files_of(precision) for precision in built}
