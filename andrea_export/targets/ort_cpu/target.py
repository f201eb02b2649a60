"""``ort-cpu``: graphs shaped for onnxruntime's CPU kernels, in fp32, int8 and int4."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from andrea_export.core.errors import BackendUnavailable
from andrea_export.core.precision import OrtPrecision
from andrea_export.operators.build import CpuLibrary, build_cpu_library
from andrea_export.operators.toolchain import find_host_tools
from andrea_export.sessions.onnxruntime import provider_availability
from andrea_export.targets.onnx.files import MODEL
from andrea_export.targets.ort_cpu.files import LIBRARY, PATTERNS, files_of
from andrea_export.targets.protocol import Build, Made, Step, Steps, Target, Toolchain, step_key
from andrea_export.targets.recipe import Recipe
from andrea_model.config import AndreaConfig

if TYPE_CHECKING:
    from andrea_export.compare.sources.base import Source


class OrtCpuTarget(Target):
    """The graphs that ``run`` generates with on the CPU."""

    artifacts = PATTERNS

    def left_out(self, toolchain: Toolchain) -> BackendUnavailable | None:
        """Without onnxruntime the graphs could be neither run nor proven here."""
        availability = provider_availability("cpu")
        if availability.available:
            return None
        return BackendUnavailable(f"target {self.name}: {availability.reason}", hint=availability.hint)

    def check(self, config: AndreaConfig, recipe: Recipe) -> None:
        """Raises UsageError for a layer that the recipe names and the model does not have; see ``check_layers``."""
        from andrea_export.targets.ort_cpu.derive import check_layers

        check_layers(config, recipe.precisions_of(self.name), recipe.ort_cpu)

    def steps(self, build: Build) -> Steps:
        """One step a precision, and the library of operators that the quantised ones have."""
        options = build.recipe.ort_cpu
        if any(files_of(precision).weights for precision in build.recipe.precisions_of(self.name)):
            yield from _library_step(build)
        for precision in build.recipe.precisions_of(self.name):
            name = f"{self.name} {precision}"
            yield Step(
                name=name,
                files=files_of(precision).all,
                key=step_key(step=name, onnx=build.record.steps["onnx"], precision=precision, options=options),
                make=partial(_make, build, precision),
            )
            build.record.ort_cpu += (precision,)

    def sources(self, made: Made) -> Iterable[Source]:
        """Every graph, ``ort-cpu-int4`` for example."""
        from andrea_export.targets.ort_cpu.source import ort_cpu_sources

        library = None if made.record.cpu_library is None else made.folder / LIBRARY
        return ort_cpu_sources(
            made.folder, made.record.ort_cpu, made.recipe.ort_cpu, made.config, made.origin, library=library
        )


def _library_step(build: Build) -> Steps:
    """The library from the cache, or compiled. Without a compiler there is none, and the build says so."""
    name = "CPU operators"
    try:
        find_host_tools()
    except BackendUnavailable as error:
        build.progress.start(name)
        build.progress.finish(name, f"left out, so int8 and int4 run several times slower: {error}")
        return
    built: list[CpuLibrary] = []

    def key() -> str:
        built.append(build_cpu_library(build.cache_dir, on_line=lambda line: build.progress.detail(name, line)))
        return built[0].key

    def make() -> str:
        output = build.folder / LIBRARY
        output.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(built[0].library, output)
        return "made: taken from the cache" if built[0].reused else "made: compiled"

    yield Step(name=name, files=(LIBRARY,), key=key, make=make, why_reused="its sources and compiler are the same")
    build.record.cpu_library = built[0].facts


def _make(build: Build, precision: OrtPrecision) -> None:
    from andrea_export.targets.ort_cpu.derive import derive_ort_cpu

    derive_ort_cpu(
        build.folder / MODEL,
        build.config,
        precision=precision,
        options=build.recipe.ort_cpu,
        folder=build.folder,
    )
