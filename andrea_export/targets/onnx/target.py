"""``onnx``: the model in one file that every runtime takes, its weights bit for bit those it was exported from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from andrea_export.core.errors import ExportError
from andrea_export.core.installed import installed_versions
from andrea_export.core.precision import PRECISIONS
from andrea_export.operators.sources import andrea_gelu
from andrea_export.report.schema import Check
from andrea_export.targets.onnx.files import MODEL, WEIGHTS
from andrea_export.targets.protocol import Build, Made, Step, Steps, Target, step_key, tool_sha256
from andrea_model.config import AndreaConfig

if TYPE_CHECKING:
    from andrea_export.compare.sources.base import Source


class OnnxTarget(Target):
    """The canonical ONNX file, in fp32 whatever else is built."""

    artifacts = (MODEL, WEIGHTS)

    def steps(self, build: Build) -> Steps:
        """One step: the export, and the hash of every parameter that went into it."""

        def make() -> None:
            from andrea_export.graph.canonical.export import export_canonical
            from andrea_export.graph.parameters import hashes_from_model

            export_canonical(build.load(), build.folder)
            build.record.weights_sha256 = hashes_from_model(build.load().model)

        key = step_key(
            step=self.name,
            config=build.config,
            origin=build.origin,
            op=andrea_gelu(),
            tool=tool_sha256(),
            versions=installed_versions(),
        )
        reused = yield Step(name=self.name, files=(MODEL, WEIGHTS), key=key, make=make)
        if reused and build.previous is not None:
            build.record.weights_sha256 = dict(build.previous.weights_sha256)

    def sources(self, made: Made) -> Iterable[Source]:
        """The file as it ships, on the CPU."""
        from andrea_export.compare.sources.onnx_source import OnnxSource

        yield OnnxSource(
            made.folder / MODEL,
            made.config,
            made.origin,
            precision=PRECISIONS["fp32"],
            name="onnxruntime-cpu",
            provenance={"file": MODEL},
        )

    def checks(self, made: Made) -> Iterable[Check]:
        """Its weights are the torch model's, bit for bit."""

        yield check_weights(made.folder / MODEL, made.record.weights_sha256, made.config)


def check_weights(model: Path, expected: Mapping[str, str], config: AndreaConfig) -> Check:
    """Whether the ONNX file's parameters are the model's and no others, bit for bit; the first layer at fault is named.

    ``expected``: parameter name → sha256. A file that cannot be read fails.
    """
    from andrea_export.graph.parameters import problems_of_parameters
    from andrea_model.model import parameter_shapes

    try:
        problems = problems_of_parameters(model, expected, config)
    except ExportError as error:
        return Check(name="weights", verdict="fail", detail=str(error))
    if not problems:
        return Check(
            name="weights",
            verdict="pass",
            detail=f"all {len(expected)} parameters in {model.name} are bit for bit the model's",
        )
    listed = ", ".join(f"{name} ({problem})" for name, problem in list(problems.items())[:8])
    more = f" and {len(problems) - 8} more" if len(problems) > 8 else ""
    first = next(iter(problems))
    return Check(
        name="weights",
        verdict="fail",
        detail=f"{len(problems)} of {len(expected)} parameters in {model.name} are not the model's: {listed}{more}",
        layer=first.rpartition(".")[0] if first in parameter_shapes(config) else None,
    )
