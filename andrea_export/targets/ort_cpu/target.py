"""``ort-cpu``: graphs shaped for onnxruntime's CPU kernels, in fp32, int8 and int4."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from andrea_export.core.errors import BackendUnavailable
from andrea_export.core.precision import OrtPrecision
from andrea_export.sessions.onnxruntime import provider_availability
from andrea_export.targets.onnx.files import MODEL
from andrea_export.targets.ort_cpu.files import PATTERNS, files_of
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
        """One step a precision."""
        options = build.recipe.ort_cpu
        for precision in build.recipe.precisions_of(self.name):
            name = f"{self.name} {precision}"
            yield Step(
                name=name,
                files=files_of(precision, options.int8_decode).all,
                key=step_key(step=name, onnx=build.record.steps["onnx"], precision=precision, options=options),
                make=partial(_make, build, precision),
            )
            build.record.ort_cpu += (precision,)

    def sources(self, made: Made) -> Iterable[Source]:
        """Every graph, ``ort-cpu-int4-prefill`` for example."""
        from andrea_export.targets.ort_cpu.source import ort_cpu_sources

        return ort_cpu_sources(made.folder, made.record.ort_cpu, made.recipe.ort_cpu, made.config, made.origin)


def _make(build: Build, precision: OrtPrecision) -> None:
    from andrea_export.targets.ort_cpu.derive import derive_ort_cpu

    derive_ort_cpu(
        build.folder / MODEL,
        build.config,
        precision=precision,
        options=build.recipe.ort_cpu,
        folder=build.folder,
    )
