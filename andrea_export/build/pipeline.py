"""Runs or reuses the steps that targets give, validates what they made, and seals the folder. Knows no target."""

import shutil
import time
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path

from andrea_export.bundle.layout import REPORT
from andrea_export.bundle.manifest import Manifest, file_entry, machine_facts, seal
from andrea_export.core.installed import installed_versions
from andrea_export.operators.sources import plugin_sources_sha256
from andrea_export.operators.toolchain import compiler_status
from andrea_export.report.file import report_as_json, report_from_json
from andrea_export.report.schema import Report
from andrea_export.targets.protocol import Build, Step, Steps, Target, step_key
from andrea_export.targets.registry import in_build_order


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """How one step of a build went."""

    name: str
    reused: bool
    why: str
    seconds: float


@dataclass(slots=True, kw_only=True)
class Pipeline:
    """One build in progress: what it makes, what came before in its place, and how its steps went."""

    build: Build
    output: Path
    previous: Manifest | None
    force: bool
    outcomes: list[StepOutcome] = field(default_factory=list)
    _kept: list[str] = field(default_factory=list)
    """Files of the earlier bundle that are still good, and not copied yet."""
    _report: Report | None = None
    """What validation found; there once its step was run or reused."""

    def all_steps(self) -> tuple[Manifest, Report]:
        """Runs or reuses every step and seals the folder; where nothing changed, returns the earlier manifest."""
        build = self.build
        targets = in_build_order(build.recipe.targets or ())
        for target in targets:
            self._run(target.steps(build))
        build.record.tokenizer = build.tokenizer.facts
        self._run(self._tokenizer())
        self._run(self._validation(targets))
        report = self._report
        assert report is not None
        all_reused = all(outcome.reused for outcome in self.outcomes)
        same = self.previous is not None and (self.previous.recipe, self.previous.tokenizer) == (
            build.recipe,
            build.record.tokenizer,
        )
        if self.previous is not None and all_reused and same:
            return self.previous, report
        self._take_kept_files()
        manifest = Manifest(
            verdict=report.verdict,
            config=build.config,
            origin=build.origin,
            recipe=build.recipe,
            files={
                file.relative_to(build.folder).as_posix(): file_entry(file)
                for file in sorted(build.folder.rglob("*"))
                if file.is_file()
            },
            **{entry.name: getattr(build.record, entry.name) for entry in fields(build.record)},
            versions=installed_versions(),
            machine=machine_facts(),
        )
        seal(build.folder, manifest)
        return manifest, report

    def _tokenizer(self) -> Steps:
        """The tokenizer's file, where it has one."""
        facts, content = self.build.tokenizer.facts, self.build.tokenizer.content
        if facts.file is not None and content is not None:
            file = self.build.folder / facts.file
            key = step_key(step="tokenizer", content=content)
            yield Step(name="tokenizer", files=(facts.file,), key=key, make=partial(_write, file, content))

    def _validation(self, targets: tuple[Target, ...]) -> Steps:
        """The last step: the proof of what the others made."""
        build, record, origin = self.build, self.build.record, self.build.origin

        def make() -> None:
            from andrea_export.validation.bundle import validate_files

            report = validate_files(
                build.folder,
                build.load(),
                recipe=build.recipe,
                record=record,
                weights_from=f"checkpoint {origin.checkpoint}" if origin.checkpoint else f"seed {origin.seed}",
                cache_dir=build.cache_dir,
                progress=build.progress,
            )
            (build.folder / REPORT).write_text(report_as_json(report), encoding="utf-8")
            self._report = report

        key = step_key(
            step="validate",
            made_of=dict(record.steps),
            plugin_maths=(plugin_sources_sha256(), [(tool.name, tool.version) for tool in compiler_status()]),
            can_run={target.name: runs for target in targets if (runs := target.runs_here()) is not None},
        )
        if (yield Step(name="validate", files=(REPORT,), key=key, make=make)):
            self._report = report_from_json(self.output / REPORT)

    def _run(self, steps: Steps) -> None:
        """Runs or reuses steps one by one, each told how it went before it gives the next."""
        reused: bool | None = None
        while True:
            try:
                step = next(steps) if reused is None else steps.send(reused)
            except StopIteration:
                return
            reused = self._step(step)

    def _step(self, step: Step) -> bool:
        """Takes the step's files from the previous bundle if made from the same, else makes them; True if taken."""
        self.build.progress.start(step.name)
        begin = time.perf_counter()
        key = step.key if isinstance(step.key, str) else step.key()
        self.build.record.steps[step.name] = key
        reused, why = self._is_reusable(step, key), step.why_reused
        if reused:
            self._kept.extend(step.files)
        else:
            why = self._why_not(step, key)
            self._take_kept_files()
            why = step.make() or why
        seconds = time.perf_counter() - begin
        self.outcomes.append(StepOutcome(name=step.name, reused=reused, why=why, seconds=seconds))
        self.build.progress.finish(step.name, f"{'reused: ' if reused else ''}{why} ({seconds:.1f} s)")
        return reused

    def _is_reusable(self, step: Step, key: str) -> bool:
        if self.previous is None or self.previous.steps.get(step.name) != key:
            return False
        return all(
            file in self.previous.files
            and (self.output / file).is_file()
            and file_entry(self.output / file) == self.previous.files[file]
            for file in step.files
        )

    def _why_not(self, step: Step, key: str) -> str:
        if self.force:
            return "made: --force"
        if self.previous is None:
            return "made: first build here"
        if step.name not in self.previous.steps:
            return "made: the earlier bundle has no such step"
        if self.previous.steps[step.name] != key:
            return "made again: what it is made from has changed"
        return "made again: its files in the earlier bundle are not the ones that were sealed"

    def _take_kept_files(self) -> None:
        """Copies what is kept of the earlier bundle into the new one, once it is known that there is a new one.

        A hard link would be cheaper, but onnxruntime refuses external weights that have two names.
        """
        for file in self._kept:
            target = self.build.folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.output / file, target)
        self._kept.clear()


def _write(file: Path, content: str) -> None:
    file.write_text(content, encoding="utf-8")
