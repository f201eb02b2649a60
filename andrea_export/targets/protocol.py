"""What a target is: something that a build makes, a folder each (ARCHITECTURE.md), a line each in ``registry``.

What a step of it is made from is one hash: equal hash, equal result, so the earlier result is taken.
"""

from __future__ import annotations

import functools
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import andrea_export
import andrea_model
from andrea_export.core.errors import BackendUnavailable
from andrea_export.core.precision import OrtPrecision
from andrea_export.core.progress import Progress
from andrea_export.operators.sources import CpuLibraryFacts, PluginFacts
from andrea_export.report.schema import Check
from andrea_export.sessions.base import Availability
from andrea_export.targets.recipe import Recipe
from andrea_export.targets.tensorrt.facts import EngineEntry
from andrea_export.tokens.files import FoundTokenizer, TokenizerFacts
from andrea_export.weights.load import LoadedModel
from andrea_export.weights.origin import WeightsOrigin
from andrea_model.config import AndreaConfig

if TYPE_CHECKING:
    from andrea_export.compare.sources.base import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """Where to look for what may lie anywhere: NVIDIA's TensorRT headers, and a CUDA toolkit beside the nvcc wheels."""

    tensorrt_root: Path | None = None
    cuda_root: Path | None = None


@dataclass(slots=True, kw_only=True)
class Record:
    """What the steps of a build have to say in its manifest, under the manifest's own names."""

    weights_sha256: dict[str, str] = field(default_factory=dict)
    plugin: PluginFacts | None = None
    engines: tuple[EngineEntry, ...] = ()
    ort_cpu: tuple[OrtPrecision, ...] = ()
    cpu_library: CpuLibraryFacts | None = None
    target_gpus: dict[str, tuple[str, ...]] = field(default_factory=dict)
    tokenizer: TokenizerFacts = field(default_factory=TokenizerFacts)
    steps: dict[str, str] = field(default_factory=dict)
    """Step → its key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One build in progress, as its targets see it."""

    folder: Path
    """Where files are written."""
    recipe: Recipe
    """Its targets are those that are built."""
    config: AndreaConfig
    origin: WeightsOrigin
    load: Callable[[], LoadedModel]
    """The torch model; loaded once, when it is first wanted. Raises: CheckpointError."""
    tokenizer: FoundTokenizer
    cache_dir: Path
    toolchain: Toolchain
    progress: Progress
    previous: Record | None
    """Of the earlier bundle in this place, if there is one."""
    record: Record = field(default_factory=Record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What a build made, sealed yet or not, as it is validated."""

    folder: Path
    scratch: Path
    """For what is derived from it to be compared; removed when the comparison ends."""
    recipe: Recipe
    config: AndreaConfig
    origin: WeightsOrigin
    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Files that are made together, and reused together where an earlier bundle has them from the same key."""

    name: str
    files: tuple[str, ...]
    key: str | Callable[[], str]
    """The hash of what they are made from (``step_key``), or what finds it out."""
    make: Callable[[], str | None]
    """Writes the files; may return how it did, where the build's own reason would say less."""
    why_reused: str = "nothing it is made from has changed"


Steps = Generator[Step, bool, None]
"""The steps of a target, in order. Each is told whether its files were reused, before the next one is asked for."""


class Target(ABC):
    """One thing that can be built. Importing its module imports no toolchain.

    What is not said otherwise holds for a target that needs the base packages alone and has no options.
    """

    name: str
    artifacts: tuple[str, ...]
    """Patterns of its files' names inside a bundle, whichever recipe made them."""

    def __init__(self, name: str) -> None:
        self.name = name

    def missing(self, toolchain: Toolchain) -> BackendUnavailable | None:
        """Why this machine cannot build it; None if it can."""
        return None

    def left_out(self, toolchain: Toolchain) -> BackendUnavailable | None:
        """Why a recipe that names no targets does not mean this one here; None if it does."""
        return self.missing(toolchain)

    def runs_here(self) -> Availability | None:
        """Whether what it makes can be run on this machine; None where that takes nothing that the build does not."""
        return None

    def check(self, config: AndreaConfig, recipe: Recipe) -> None:
        """Holds the recipe's part that is this target's, before anything is built, whether it is built or not.

        Raises: UsageError.
        """
        return

    @abstractmethod
    def steps(self, build: Build) -> Steps:
        """The steps that make it. Raises: PluginError, BuildError, ExportError, PassError."""

    def sources(self, made: Made) -> Iterable[Source]:
        """The candidates that prove what it made, in the report's order; none where it made nothing."""
        return ()

    def checks(self, made: Made) -> Iterable[Check]:
        """What must hold of its files beside that."""
        return ()


def step_key(**made_from: Any) -> str:
    """The hash of what a step is made from; dataclasses and paths' contents must be given as values or hashes."""
    text = json.dumps(made_from, sort_keys=True, default=asdict)
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def tool_sha256() -> str:
    """The hash of this tool's own Python sources: a changed tool reuses nothing."""
    digest = hashlib.sha256()
    for package in (andrea_export, andrea_model):
        root = Path(str(package.__file__)).parent
        for file in sorted(root.rglob("*.py")):
            if "_plugin_sources" in file.parts:  # a wheel's copy of the C++ folder has its own hash
                continue
            digest.update(f"{root.name}/{file.relative_to(root).as_posix()}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()
