"""The steps of a build: what each is made from, whether an earlier bundle already has it, and the sealing at the end.

Every step's work is another file's.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from andrea_export.build.steps import step_key, tool_sha256
from andrea_export.bundle.contents import MODEL, PLUGIN, REPORT, WEIGHTS
from andrea_export.bundle.manifest import Manifest, PluginFacts, file_entry, machine_facts, seal
from andrea_export.core.errors import CheckpointError
from andrea_export.core.installed import installed_versions
from andrea_export.core.precision import EnginePrecision, OrtPrecision
from andrea_export.core.progress import Progress
from andrea_export.core.targets import ENGINE_TARGETS, EngineTarget, Target
from andrea_export.operators import build_plugin_library, check_library, compiler_status, plugin_sources_sha256
from andrea_export.operators.rows import andrea_gelu
from andrea_export.report.file import report_as_json, report_from_json
from andrea_export.report.schema import Report
from andrea_export.targets.engines import engine_backend
from andrea_export.targets.ort_cpu.files import files_of
from andrea_export.targets.recipe import Recipe
from andrea_export.targets.tensorrt.facts import EngineEntry, EngineRequest
from andrea_export.weights.load import LoadedModel, load_model
from andrea_export.weights.origin import WeightsOrigin
from andrea_model.config import AndreaConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """Where to look for what may lie anywhere: NVIDIA's TensorRT headers, and a CUDA toolkit beside the nvcc wheels."""

    tensorrt_root: Path | None = None
    cuda_root: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """How one step of a build went."""

    name: str
    reused: bool
    why: str
    seconds: float


@dataclass(slots=True, kw_only=True)
class Pipeline:
    """One build in progress: where it writes, what it knows, what came before."""

    folder: Path
    output: Path
    recipe: Recipe
    checkpoint: Path | None
    config: AndreaConfig
    origin: WeightsOrigin
    targets: tuple[Target, ...]
    cache_dir: Path
    progress: Progress
    previous: Manifest | None
    force: bool
    toolchain: Toolchain
    keys: dict[str, str] = field(default_factory=dict)
    outcomes: list[StepOutcome] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """Files of the earlier bundle that are still good."""
    _loaded: LoadedModel | None = None
    weights_sha256: dict[str, str] = field(default_factory=dict)

    def all_steps(self) -> tuple[Manifest, Report]:
        """Runs or reuses every step and seals the folder; where nothing changed, returns the earlier manifest."""
        self._onnx()
        plugin = self._plugin() if any(target in ENGINE_TARGETS for target in self.targets) else None
        engines = tuple(self._engines(plugin))
        ort_cpu = self._ort_cpu()
        report = self._validation(engines, ort_cpu)
        recipe = replace(self.recipe, preset=self.origin.preset, targets=self.targets)
        all_reused = all(outcome.reused for outcome in self.outcomes)
        if self.previous is not None and all_reused and self.previous.recipe == recipe:
            return self.previous, report
        self._take_kept_files()
        manifest = Manifest(
            verdict=report.verdict,
            config=self.config,
            origin=self.origin,
            recipe=recipe,
            files={
                file.relative_to(self.folder).as_posix(): file_entry(file)
                for file in sorted(self.folder.rglob("*"))
                if file.is_file()
            },
            weights_sha256=self.weights_sha256,
            plugin=plugin,
            engines=engines,
            ort_cpu=ort_cpu,
            target_gpus=_target_gpus(plugin, engines),
            steps=self.keys,
            versions=installed_versions(),
            machine=machine_facts(),
        )
        seal(self.folder, manifest)
        return manifest, report

    def _onnx(self) -> None:
        def make() -> None:
            from andrea_export.graph.canonical.export import export_canonical
            from andrea_export.graph.parameters import hashes_from_model

            export_canonical(self._model(), self.folder)
            self.weights_sha256 = hashes_from_model(self._model().model)

        key = step_key(
            step="onnx",
            config=self.config,
            origin=self.origin,
            op=andrea_gelu(),
            tool=tool_sha256(),
            versions=installed_versions(),
        )
        if self._step("onnx", key, (MODEL, WEIGHTS), make):
            assert self.previous is not None
            self.weights_sha256 = dict(self.previous.weights_sha256)

    def _ort_cpu(self) -> tuple[OrtPrecision, ...]:
        """The graphs for onnxruntime's CPU provider, one step a precision; returns the precisions."""
        if "ort-cpu" not in self.targets:
            return ()
        for precision in self.recipe.ort_precisions:
            self._ort_cpu_step(precision)
        return self.recipe.ort_precisions

    def _ort_cpu_step(self, precision: OrtPrecision) -> None:
        def make() -> None:
            from andrea_export.targets.ort_cpu.derive import derive_ort_cpu

            derive_ort_cpu(
                self.folder / MODEL,
                self.config,
                precision=precision,
                options=self.recipe.ort_cpu,
                folder=self.folder,
            )

        name = f"ort-cpu {precision}"
        key = step_key(step=name, onnx=self.keys["onnx"], precision=precision, options=self.recipe.ort_cpu)
        self._step(name, key, files_of(precision, self.recipe.ort_cpu.int8_decode).all, make)

    def _plugin(self) -> PluginFacts:
        """The plugin library, from the cache if its sources and compilers are the same."""
        name = "plugin"
        self.progress.start(name)
        begin = time.perf_counter()
        built = build_plugin_library(
            self.cache_dir,
            architectures=self.recipe.cuda_architectures,
            tensorrt_root=self.toolchain.tensorrt_root,
            toolkit_root=self.toolchain.cuda_root,
            on_line=lambda line: self.progress.detail(name, line),
        )
        check_library(built.library, andrea_gelu())
        target = self.folder / PLUGIN
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(built.library, target)
        self.keys[name] = built.key
        if self._is_reusable(name, built.key, (PLUGIN,)):
            self._finish(name, True, "its sources, compilers and architectures are the same", begin)
        else:
            self._finish(name, False, "made: taken from the cache" if built.reused else "made: compiled", begin)
        return PluginFacts(
            sources_sha256=built.sources_sha256,
            nvcc_version=built.nvcc_version,
            host_compiler=built.host_compiler,
            architectures=tuple(built.architectures),
            tensorrt_headers=built.tensorrt_headers,
        )

    def _engines(self, plugin: PluginFacts | None) -> Sequence[EngineEntry]:
        wanted = [
            (target, precision, native)
            for target in ENGINE_TARGETS
            if target in self.targets
            for precision in self.recipe.engine_precisions
            for native in ((False, True) if self.recipe.native_twin else (False,))
        ]
        return [self._engine(target, precision, native) for target, precision, native in wanted]

    def _engine(self, target: EngineTarget, precision: EnginePrecision, native: bool) -> EngineEntry:
        file = f"engines/{target}-{precision}{'-native' if native else ''}.plan"
        name = f"engine {Path(file).stem}"
        made: list[EngineEntry] = []

        def make() -> None:
            (self.folder / file).parent.mkdir(exist_ok=True)
            request = EngineRequest(
                model=self.folder / MODEL,
                config=self.config,
                target=target,
                precision=precision,
                profile=self.recipe.profile,
                tf32=self.recipe.tf32,
                plugin_library=None if native else self.folder / PLUGIN,
                timeout_s=self.recipe.engine_timeout_s,
                output=self.folder / file,
            )
            facts = engine_backend(target).build(request, self.progress)
            made.append(EngineEntry(file=file, native_twin=native, facts=facts))

        key = step_key(
            step=name,
            onnx=self.keys["onnx"],
            plugin=None if native else self.keys["plugin"],
            target=target,
            precision=precision,
            profile=self.recipe.profile,
            tf32=self.recipe.tf32,
        )
        if self._step(name, key, (file,), make):
            assert self.previous is not None
            return next(entry for entry in self.previous.engines if entry.file == file)
        return made[0]

    def _validation(self, engines: Sequence[EngineEntry], ort_cpu: Sequence[OrtPrecision]) -> Report:
        made: list[Report] = []

        def make() -> None:
            from andrea_export.validation.validate import validate_files

            report = validate_files(
                self.folder,
                self._model(),
                engines=engines,
                profile=self.recipe.profile,
                ort_cpu=ort_cpu,
                ort_options=self.recipe.ort_cpu,
                weights_sha256=self.weights_sha256,
                weights_from=f"checkpoint {self.origin.checkpoint}" if self.checkpoint else f"seed {self.origin.seed}",
                cache_dir=self.cache_dir,
                progress=self.progress,
            )
            (self.folder / REPORT).write_text(report_as_json(report), encoding="utf-8")
            made.append(report)

        key = step_key(
            step="validate",
            made_of=dict(self.keys),
            plugin_maths=(plugin_sources_sha256(), [(tool.name, tool.version) for tool in compiler_status()]),
            can_run={target: engine_backend(target).can_run() for target in ENGINE_TARGETS if target in self.targets},
        )
        if self._step("validate", key, (REPORT,), make):
            return report_from_json(self.output / REPORT)
        return made[0]

    def _step(self, name: str, key: str, files: Sequence[str], make: Callable[[], None]) -> bool:
        """Takes the step's files from the previous bundle if made from the same, else makes them; True if taken."""
        self.keys[name] = key
        self.progress.start(name)
        begin = time.perf_counter()
        if self._is_reusable(name, key, files):
            self.kept.extend(files)
            self._finish(name, True, "nothing it is made from has changed", begin)
            return True
        why = self._why_not(name, key)
        self._take_kept_files()
        make()
        self._finish(name, False, why, begin)
        return False

    def _is_reusable(self, name: str, key: str, files: Sequence[str]) -> bool:
        if self.previous is None or self.previous.steps.get(name) != key:
            return False
        return all(
            file in self.previous.files
            and (self.output / file).is_file()
            and file_entry(self.output / file) == self.previous.files[file]
            for file in files
        )

    def _why_not(self, name: str, key: str) -> str:
        if self.force:
            return "made: --force"
        if self.previous is None:
            return "made: first build here"
        if name not in self.previous.steps:
            return "made: the earlier bundle has no such step"
        if self.previous.steps[name] != key:
            return "made again: what it is made from has changed"
        return "made again: its files in the earlier bundle are not the ones that were sealed"

    def _take_kept_files(self) -> None:
        """Copies what is kept of the earlier bundle into the new one, once it is known that there is a new one.

        A hard link would be cheaper, but onnxruntime refuses external weights that have two names.
        """
        for file in self.kept:
            target = self.folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.output / file, target)
        self.kept.clear()

    def _finish(self, name: str, reused: bool, why: str, begin: float) -> None:
        seconds = time.perf_counter() - begin
        self.outcomes.append(StepOutcome(name=name, reused=reused, why=why, seconds=seconds))
        self.progress.finish(name, f"{'reused: ' if reused else ''}{why} ({seconds:.1f} s)")

    def _model(self) -> LoadedModel:
        if self._loaded is None:
            self._loaded = load_model(preset=self.recipe.preset, checkpoint=self.checkpoint, seed=self.recipe.seed)
            if self._loaded.origin != self.origin:
                raise CheckpointError(f"checkpoint {self.checkpoint} changed while the bundle was being built")
        return self._loaded


def _target_gpus(plugin: PluginFacts | None, engines: Sequence[EngineEntry]) -> dict[str, tuple[str, ...]]:
    """File → the compute capabilities it is for: the plugin's machine code and PTX, an engine's by its flavour."""
    if plugin is None:
        return {}
    return {
        PLUGIN: tuple(name for entry in plugin.architectures for name in _compute_capabilities(entry)),
        **{entry.file: engine_backend(entry.facts.target).target_gpus for entry in engines},
    }


def _compute_capabilities(architecture: str) -> tuple[str, ...]:
    """CMake's name of an architecture as compute capabilities: ``90`` → 9.0 and its PTX, ``120-real`` → 12.0."""
    found = re.fullmatch(r"(\d+)(\d)([a-z]?)(-real|-virtual)?", architecture)
    if found is None:  # native, all-major: CMake's own words
        return (architecture,)
    name = f"{found[1]}.{found[2]}{found[3]}"
    kinds = {"-real": (name,), "-virtual": (f"{name} PTX",)}
    return kinds.get(found[4], (name, f"{name} PTX"))
