"""The bundle on disk and its whole manifest: what is in it, and everything that it was made from.

Owns the manifest's fields and sealing; makes none of the files. What running it needs of it is ``contents``.
"""

import json
import platform
from collections.abc import Mapping
from copy import copy
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from andrea_export.bundle.contents import Contents, FileEntry, read_manifest
from andrea_export.bundle.layout import MANIFEST, MODEL, PLUGIN, SCHEMA
from andrea_export.core.errors import BundleError
from andrea_export.core.hashing import sha256_of
from andrea_export.core.precision import OrtPrecision
from andrea_export.core.strict import Strict
from andrea_export.operators.sources import CpuLibraryFacts, PluginFacts
from andrea_export.report.schema import Verdict
from andrea_export.targets.ort_cpu.files import LIBRARY, files_of
from andrea_export.targets.protocol import Record
from andrea_export.targets.recipe import Recipe, recipe_as_mapping
from andrea_export.targets.tensorrt.facts import EngineEntry
from andrea_export.tokens.files import TokenizerFacts
from andrea_export.weights.origin import WeightsOrigin
from andrea_model.config import AndreaConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(Strict):
    """Everything that had a say in a bundle. ``schema`` comes first: a reader stops at one it does not know."""

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
    """The precisions of the graphs for onnxruntime's CPU provider; ``files_of`` names the files."""
    tokenizer: TokenizerFacts = field(default_factory=TokenizerFacts)
    """How text becomes tokens; its file, if it has one, is among ``files``."""
    cpu_library: CpuLibraryFacts | None = None
    """What has the operators of the int8 and int4 graphs; None where there was no compiler."""
    target_gpus: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """File → compute capabilities it is for; ``9.0 PTX`` is compiled by the driver for any GPU from 9.0 on."""
    steps: Mapping[str, str] = field(default_factory=dict)
    """Step → hash of everything it was made from; a later build reuses a step whose hash is the same."""
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)

    @property
    def record(self) -> Record:
        """What the steps of its build had to say."""
        return Record(**{entry.name: copy(getattr(self, entry.name)) for entry in fields(Record)})

    def __post_init__(self) -> None:
        if len(set(self.ort_cpu)) != len(self.ort_cpu):
            raise ValueError(f"ort_cpu names one precision twice: {', '.join(self.ort_cpu)}")


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

    @property
    def contents(self) -> Contents:
        """What it holds, as far as running and checking it needs."""
        return Contents(
            path=self.path,
            verdict=self.manifest.verdict,
            config=self.config,
            origin=self.origin,
            files=self.manifest.files,
            text=self.manifest.tokenizer,
            ort_cpu={precision: files_of(precision) for precision in self.manifest.ort_cpu},
        )


def open_bundle(path: Path, *, verify: bool = True) -> Bundle:
    """The bundle in a folder, every file checked against the manifest unless told not to.

    Raises: BundleError for a folder that is not a bundle, a manifest that is damaged or of an unknown schema, and (with
    ``verify``) for files that do not match, all named.
    """
    bundle = Bundle(path=path, manifest=_manifest(path))
    manifest, contents = bundle.manifest, bundle.contents
    libraries = [name for name, facts in ((PLUGIN, manifest.plugin), (LIBRARY, manifest.cpu_library)) if facts]
    contents.check_names([*libraries, *(entry.file for entry in manifest.engines)])
    if verify:
        contents.check()
    return bundle


def seal(path: Path, manifest: Manifest) -> None:
    """Writes the manifest beside the files it describes."""
    stated = {"config": manifest.config.stated(), "recipe": recipe_as_mapping(manifest.recipe)}
    mapping = {**asdict(manifest), **stated}
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


def _manifest(path: Path) -> Manifest:
    try:
        manifest: Manifest = _MANIFEST.validate_python(read_manifest(path))
    except ValidationError as error:
        first = error.errors()[0]
        raise BundleError(
            f"{path / MANIFEST}: {'.'.join(map(str, first['loc']))}: {first['msg']}", hint="build the bundle again"
        ) from None
    return manifest
