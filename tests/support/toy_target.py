"""A target in one file: what a new one has to bring, beside its line in the registry."""

from __future__ import annotations

from collections.abc import Iterable

from andrea_export.core.errors import UsageError
from andrea_export.report.schema import Check
from andrea_export.targets.protocol import Build, Made, Step, Steps, Target, step_key
from andrea_export.targets.recipe import Recipe
from andrea_model.config import AndreaConfig


class ToyTarget(Target):
    """Writes down how large the canonical file is."""

    artifacts = ("toy-*.txt",)

    def check(self, config: AndreaConfig, recipe: Recipe) -> None:
        """Raises UsageError for a seed it does not like."""
        if recipe.seed == 13:
            raise UsageError("toy: the seed is 13")

    def steps(self, build: Build) -> Steps:
        """One step."""

        def make() -> None:
            num_bytes = (build.folder / "model.onnx").stat().st_size
            (build.folder / "toy-size.txt").write_text(f"{num_bytes}\n", encoding="utf-8")

        key = step_key(step=self.name, onnx=build.record.steps["onnx"])
        yield Step(name=self.name, files=("toy-size.txt",), key=key, make=make)

    def checks(self, made: Made) -> Iterable[Check]:
        """What it says is so; nothing where it was not built."""
        file, num_bytes = made.folder / "toy-size.txt", (made.folder / "model.onnx").stat().st_size
        if file.is_file():
            found = file.read_text(encoding="utf-8").strip()
            yield Check(
                name="toy", verdict="pass" if found == str(num_bytes) else "fail", detail=f"{found} of {num_bytes}"
            )
