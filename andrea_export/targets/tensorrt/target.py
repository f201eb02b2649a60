"""``tensorrt`` and ``tensorrt-rtx``: the plugin library, an engine a precision with it embedded, and what must hold of
both on disk."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from andrea_export.core.errors import BackendUnavailable
from andrea_export.core.precision import PRECISIONS, EnginePrecision
from andrea_export.operators.build import PluginBuild, build_plugin_library
from andrea_export.operators.creators import check_library
from andrea_export.operators.sources import andrea_gelu
from andrea_export.operators.toolchain import compiler_status
from andrea_export.report.schema import Check
from andrea_export.sessions.base import Availability
from andrea_export.targets.onnx.files import MODEL
from andrea_export.targets.protocol import Build, Made, Step, Steps, Target, Toolchain, step_key
from andrea_export.targets.recipe import Recipe
from andrea_export.targets.tensorrt.facts import EngineEntry, EngineRequest, check_profile
from andrea_export.targets.tensorrt.flavours import FLAVOURS, PATTERNS, PLUGIN, engine_backend, engine_file
from andrea_export.targets.tensorrt.worker_build import file_contains
from andrea_model.config import AndreaConfig

if TYPE_CHECKING:
    from andrea_export.compare.sources.base import Source


_PLUGIN_STEP = "plugin"


class TensorRTTarget(Target):
    """The engines of one flavour. The library is built once, whichever flavour wants it first."""

    artifacts = PATTERNS

    def missing(self, toolchain: Toolchain) -> BackendUnavailable | None:
        """The flavour's package, a GPU where its builder needs one, or a compiler of the plugin."""
        engines = engine_backend(self.name).can_build()
        if not engines.available:
            return BackendUnavailable(f"target {self.name}: {engines.reason}", hint=engines.hint)
        missing = [tool for tool in compiler_status(toolkit_root=toolchain.cuda_root) if not tool.found]
        if not missing:
            return None
        return BackendUnavailable(
            f"target {self.name}: the plugin cannot be compiled without {', '.join(tool.name for tool in missing)}",
            hint="; ".join(dict.fromkeys(tool.hint for tool in missing if tool.hint)),
        )

    def runs_here(self) -> Availability | None:
        """Engines run on a GPU."""
        return engine_backend(self.name).can_run()

    def check(self, config: AndreaConfig, recipe: Recipe) -> None:
        """Raises UsageError for a profile that the model cannot have, where engines are built."""
        if self.name in (recipe.targets or ()):
            check_profile(config, recipe.profile)

    def steps(self, build: Build) -> Steps:
        """The plugin, unless the other flavour has made it, and one step an engine."""
        if _PLUGIN_STEP not in build.record.steps:
            yield from _plugin_step(build)
        for precision in build.recipe.precisions_of(self.name):
            yield from self._engine_step(build, precision, native=False)
            if build.recipe.native_twin:
                yield from self._engine_step(build, precision, native=True)

    def sources(self, made: Made) -> Iterable[Source]:
        """The graph that the engines of each half precision are built from, on the CPU, and the engines themselves.

        The former proves the rule of what is half and what is not, whichever flavour's engine it is.
        """
        from andrea_export.targets.tensorrt.source import EngineSource, mixed_source

        engines = self._engines(made)
        for precision in dict.fromkeys(entry.facts.precision for entry in engines):
            if precision != "fp32":
                yield mixed_source(
                    made.folder / MODEL, made.config, made.origin, PRECISIONS[precision], folder=made.scratch
                )
        for entry in engines:
            yield EngineSource(made.folder / entry.file, entry, made.config, made.origin, profile=made.recipe.profile)

    def checks(self, made: Made) -> Iterable[Check]:
        """Every engine's GELUs are what it claims, and the library is in its plan or is not."""

        return [check_plugin(made.folder, entry, made.config) for entry in self._engines(made)]

    def _engines(self, made: Made) -> list[EngineEntry]:
        return [entry for entry in made.record.engines if entry.facts.target == self.name]

    def _engine_step(self, build: Build, precision: EnginePrecision, *, native: bool) -> Steps:
        recipe, record = build.recipe, build.record
        file = engine_file(self.name, precision, native_twin=native)
        output = build.folder / file
        name = f"engine {output.stem}"
        made: list[EngineEntry] = []

        def make() -> None:
            output.parent.mkdir(exist_ok=True)
            request = EngineRequest(
                model=build.folder / MODEL,
                config=build.config,
                target=self.name,
                precision=precision,
                profile=recipe.profile,
                tf32=recipe.tf32,
                plugin_library=None if native else build.folder / PLUGIN,
                timeout_s=recipe.engine_timeout_s,
                output=output,
            )
            facts = engine_backend(self.name).build(request, build.progress)
            made.append(EngineEntry(file=file, native_twin=native, facts=facts))

        key = step_key(
            step=name,
            onnx=record.steps["onnx"],
            plugin=None if native else record.steps[_PLUGIN_STEP],
            target=self.name,
            precision=precision,
            profile=recipe.profile,
            tf32=recipe.tf32,
        )
        reused = yield Step(name=name, files=(file,), key=key, make=make)
        if reused and build.previous is not None:
            made += [entry for entry in build.previous.engines if entry.file == file]
        record.engines += tuple(made)
        record.target_gpus[file] = FLAVOURS[self.name].target_gpus


def _plugin_step(build: Build) -> Steps:
    """The library from the cache, where its sources and compilers are the same. Its key is known once it is there."""
    built: list[PluginBuild] = []

    def key() -> str:
        built.append(
            build_plugin_library(
                build.cache_dir,
                architectures=build.recipe.cuda_architectures,
                tensorrt_root=build.toolchain.tensorrt_root,
                toolkit_root=build.toolchain.cuda_root,
                on_line=lambda line: build.progress.detail(_PLUGIN_STEP, line),
            )
        )
        check_library(built[0].library, andrea_gelu())
        return built[0].key

    def make() -> str:
        output = build.folder / PLUGIN
        output.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(built[0].library, output)
        return "made: taken from the cache" if built[0].reused else "made: compiled"

    why_reused = "its sources, compilers and architectures are the same"
    yield Step(name=_PLUGIN_STEP, files=(PLUGIN,), key=key, make=make, why_reused=why_reused)
    build.record.plugin = plugin = built[0].facts
    build.record.target_gpus[PLUGIN] = tuple(
        name for entry in plugin.architectures for name in _compute_capabilities(entry)
    )


def _compute_capabilities(architecture: str) -> tuple[str, ...]:
    """CMake's name of an architecture as compute capabilities: ``90`` → 9.0 and its PTX, ``120-real`` → 12.0."""
    found = re.fullmatch(r"(\d+)(\d)([a-z]?)(-real|-virtual)?", architecture)
    if found is None:  # native, all-major: CMake's own words
        return (architecture,)
    name = f"{found[1]}.{found[2]}{found[3]}"
    kinds = {"-real": (name,), "-virtual": (f"{name} PTX",)}
    return kinds.get(found[4], (name, f"{name} PTX"))


def check_plugin(folder: Path, entry: EngineEntry, config: AndreaConfig) -> Check:
    """Whether an engine's GELUs are what it claims, all plugin or (native twin) none, and its plan has the library."""
    facts = entry.facts
    wanted = 0 if entry.native_twin else config.n_layer
    counts = facts.num_plugin_layers == wanted and facts.num_gelu_nodes == config.n_layer
    plan, library = folder / entry.file, folder / PLUGIN
    both = all(file.is_file() and file.stat().st_size for file in (plan, library))
    embedded = both and file_contains(plan, library.read_bytes())
    return Check(
        name=f"plugin in {entry.file}",
        verdict="pass" if counts and embedded is not entry.native_twin else "fail",
        detail=(
            f"{facts.num_plugin_layers} plugin layers of {facts.num_gelu_nodes} GELU nodes and {config.n_layer} "
            f"blocks, library {'embedded' if embedded else 'not embedded'}"
        ),
    )
