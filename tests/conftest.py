"""Fixtures of all tests: a tiny trained-looking model as checkpoint, ONNX file and bundle; the command line."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from andrea_export.build.build import BuildResult, build_bundle
from andrea_export.bundle.manifest import file_entry, open_bundle, seal
from andrea_export.cli import main
from andrea_export.core.progress import Silent
from andrea_export.graph.canonical.export import export_canonical
from andrea_export.operators.build import build_cpu_library
from andrea_export.targets.recipe import recipe_from_mapping
from andrea_export.targets.tensorrt.facts import EngineEntry, EngineFacts
from andrea_export.weights.load import LoadedModel, load_model, save_checkpoint
from support.made_once import MadeOnce
from support.model_traits import with_every_parameter_at_work, with_outlier_channels

# Workers share the cores that torch's threads would otherwise fight over.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)

pytest_plugins = [
    "support.measured",
    "support.plugin_builds",
    "support.small_model",
    "support.traced_once",
    "support.variants",
]


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    """Makes what is expensive and only read once a run. Under pytest-xdist a worker's folder is one below the run's."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "made-once"
    folder.mkdir(exist_ok=True)
    return MadeOnce(folder=folder)


@pytest.fixture(scope="session")
def cache_dir(made_once: MadeOnce) -> Path:
    """One plugin cache for the whole run: the library is compiled once."""
    return made_once("cache", lambda folder: folder)


@pytest.fixture(scope="session")
def cpu_library(cache_dir: Path) -> Path:
    """The operators for onnxruntime's CPU provider, compiled once for the whole run."""
    return build_cpu_library(cache_dir).library


@pytest.fixture(scope="session")
def checkpoint(made_once: MadeOnce) -> Path:
    """A tiny checkpoint in which no bias is zero and no gain is one, so that every parameter matters."""
    return made_once("checkpoint", lambda folder: _tiny_checkpoint(folder / "tiny.safetensors"))


def _tiny_checkpoint(path: Path) -> Path:
    model = with_every_parameter_at_work(load_model(preset="andrea-tiny", checkpoint=None, seed=1).model)
    save_checkpoint(model, path)
    return path


@pytest.fixture(scope="session")
def tiny(checkpoint: Path) -> LoadedModel:
    """The model in the checkpoint."""
    return load_model(preset=None, checkpoint=checkpoint, seed=0)


@pytest.fixture(scope="session")
def tiny_onnx(tiny: LoadedModel, made_once: MadeOnce) -> Path:
    """Its canonical ONNX file. Read only."""
    return made_once("tiny-onnx", lambda folder: export_canonical(tiny, folder))


@pytest.fixture(scope="session")
def andrea_120m_checkpoint(made_once: MadeOnce) -> Path:
    """The real shape, untrained, with a few channels that dwarf the others, as a trained model's do. Read only."""

    def make(folder: Path) -> Path:
        loaded = load_model(preset="andrea-120m", checkpoint=None, seed=0)
        save_checkpoint(with_outlier_channels(loaded.model), folder / "outliers.safetensors", origin=loaded.origin)
        return folder / "outliers.safetensors"

    return made_once("120m", make)


@pytest.fixture(scope="session")
def andrea_120m(andrea_120m_checkpoint: Path) -> LoadedModel:
    """The model in it. Not to be changed."""
    return load_model(preset=None, checkpoint=andrea_120m_checkpoint, seed=0)


@pytest.fixture(scope="session")
def andrea_120m_build(andrea_120m_checkpoint: Path, cache_dir: Path, made_once: MadeOnce) -> BuildByCommand:
    """Its bundle, with all that this machine can build. Read only."""
    options = ("--checkpoint", andrea_120m_checkpoint, "--cache-dir", cache_dir)
    return made_once("120m-bundle", lambda folder: build_by_command(folder / "andrea-120m", *options))


@pytest.fixture(scope="session")
def andrea_120m_onnx(andrea_120m_build: BuildByCommand) -> Path:
    """Its canonical ONNX file. Read only."""
    return andrea_120m_build.bundle / "model.onnx"


def _built(checkpoint: Path, cache_dir: Path, output: Path, **recipe: object) -> BuildResult:
    return build_bundle(
        output,
        recipe_from_mapping(recipe, where="test"),
        checkpoint=checkpoint,
        force=False,
        cache_dir=cache_dir,
        progress=Silent(),
    )


@pytest.fixture(scope="session")
def built(checkpoint: Path, cache_dir: Path, made_once: MadeOnce) -> BuildResult:
    """A bundle of the checkpoint with the ONNX target only. Read only."""
    return made_once("built", lambda folder: _built(checkpoint, cache_dir, folder / "bundle", targets=["onnx"]))


@pytest.fixture
def bundle(built: BuildResult, tmp_path: Path) -> Path:
    """A copy of that bundle, to be damaged."""
    return Path(shutil.copytree(built.bundle, tmp_path / "bundle"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildByCommand:
    """A bundle that a command line built in this process, and what it said with ``--json``."""

    bundle: Path
    done: Outcome


def build_by_command(output: Path, *options: object) -> BuildByCommand:
    """``andrea-export build OUTPUT OPTIONS --json``, whether or not it succeeds."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr), pytest.raises(SystemExit) as exit_of:
        main(["build", str(output), *map(str, options), "--json"])
    assert isinstance(exit_of.value.code, int)
    done = Outcome(code=exit_of.value.code, stdout=stdout.getvalue(), stderr=stderr.getvalue())
    return BuildByCommand(bundle=output, done=done)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one command line did: its exit code, and what it wrote where."""

    code: int
    stdout: str
    stderr: str

    @property
    def error(self) -> str:
        """The error's line, without its prefix. Fails if stderr does not hold exactly one."""
        lines = [line for line in self.stderr.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, self.stderr
        return lines[0].removeprefix("error: ")

    @property
    def hint(self) -> str | None:
        """The hint's line, without its prefix."""
        return next(
            (line.removeprefix("hint: ") for line in self.stderr.splitlines() if line.startswith("hint: ")), None
        )


Andrea = Callable[..., Outcome]


@pytest.fixture
def andrea(capsys: pytest.CaptureFixture[str]) -> Andrea:
    """Runs one command line in this process: ``andrea("inspect", path)``."""

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_of:
            main([str(argument) for argument in arguments])
        written = capsys.readouterr()
        assert isinstance(exit_of.value.code, int)
        return Outcome(code=exit_of.value.code, stdout=written.out, stderr=written.err)

    return run


@pytest.fixture(scope="session")
def built_bundle(built: BuildResult) -> Path:
    """The folder of the bundle. Read only."""
    return built.bundle


def add_engine_entry(bundle: Path, num_gelus: int) -> None:
    """Adds an engine to the bundle's manifest, and a file that stands for it."""
    (bundle / "engines").mkdir()
    file = bundle / "engines/tensorrt-rtx-fp16.plan"
    file.write_bytes(b"vtrt stands for an engine")
    facts = EngineFacts(
        target="tensorrt-rtx",
        precision="fp16",
        num_gelu_nodes=num_gelus,
        num_plugin_layers=num_gelus,
        gelu_implementations={},
        num_network_layers=100,
        plugin_embedded=True,
        tf32=False,
        tensorrt_version="1.7.1.116",
        engine_bytes=file.stat().st_size,
        seconds=1.0,
        peak_memory_bytes=1,
    )
    manifest = open_bundle(bundle).manifest
    entry = EngineEntry(file="engines/tensorrt-rtx-fp16.plan", native_twin=False, facts=facts)
    seal(bundle, replace(manifest, engines=(entry,), files={**manifest.files, entry.file: file_entry(file)}))


@pytest.fixture(scope="session")
def ort_built(checkpoint: Path, cache_dir: Path, made_once: MadeOnce) -> BuildResult:
    """A bundle of the checkpoint with the CPU graphs in every precision. Read only."""
    recipe = {"targets": ["onnx", "ort-cpu"], "precisions": ["fp32", "int8", "int4"]}
    return made_once("ort-built", lambda folder: _built(checkpoint, cache_dir, folder / "bundle", **recipe))


@pytest.fixture(scope="session")
def ort_bundle(ort_built: BuildResult) -> Path:
    """Its folder. Read only."""
    return ort_built.bundle


@pytest.fixture(scope="session")
def example(trained: LoadedModel, trained_onnx: Path, made_once: MadeOnce) -> Path:
    """The folder that ``scripts/example_report.py`` writes: a report with a planted fault. Read only."""
    from example_report import write_example

    from support.detection import Subject

    def make(folder: Path) -> Path:
        (folder / "planted").mkdir()
        subject = Subject(loaded=trained, folder=folder / "planted", clean=trained_onnx)
        return write_example(folder / "example", subject).parent

    return made_once("example", make)
