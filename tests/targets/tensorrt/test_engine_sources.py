"""Engines, played by torch in their precision: their outputs, types and profiles, TF32, and the plugin's proof."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from andrea_export.bundle.layout import PLUGIN
from andrea_export.compare.inputs import Inputs, cases_within
from andrea_export.compare.sources.torch_source import TorchSource
from andrea_export.core.errors import BackendUnavailable, RunError
from andrea_export.core.names import graph_outputs
from andrea_export.core.profile import Profile, ShapeRange
from andrea_export.core.progress import Silent
from andrea_export.judge.verdicts import Terms
from andrea_export.report.schema import Report
from andrea_export.sessions.base import Availability, Feeds, Session
from andrea_export.sessions.torch_reference import TorchSession
from andrea_export.targets.tensorrt.facts import EngineEntry, EngineFacts
from andrea_export.targets.tensorrt.source import EngineSource
from andrea_export.targets.tensorrt.target import check_plugin
from andrea_export.validation.bundle import compare_within_profiles
from andrea_export.validation.comparison import diff, inputs_for
from andrea_export.weights.load import LoadedModel

FACTS = EngineFacts(
    target="tensorrt-rtx", precision="fp32", num_gelu_nodes=2, num_plugin_layers=2,
    gelu_implementations={"blocks.0.mlp.gelu": "plugin", "blocks.1.mlp.gelu": "plugin"}, num_network_layers=9,
    plugin_embedded=True, tf32=False, tensorrt_version="1.7", engine_bytes=1, seconds=1.0, peak_memory_bytes=1,
)  # fmt: skip
ENTRY = EngineEntry(file="engines/tensorrt-rtx-fp32.plan", native_twin=False, facts=FACTS)

Change = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]


class PlayedEngine:
    """A session that runs only what its profile allows, and may change what it returns."""

    def __init__(self, model: TorchSession, profile: Profile, change: Change) -> None:
        self.name, self.output_names = "tensorrt-rtx-fp32", model.output_names
        self._model, self._profile, self._change = model, profile, change

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        batch, sequence = feeds["input_ids"].shape
        past = feeds["past_key_values.0.key"].shape[2]
        for size, allowed in (
            (batch, self._profile.batch),
            (sequence, self._profile.sequence),
            (past, self._profile.past),
        ):
            if not allowed.min <= size <= allowed.max:
                raise RunError(f"{size} is outside the profile ({allowed.min} to {allowed.max})")
        return self._change(self._model.run(feeds))

    def close(self) -> None:
        self._model.close()

    def __enter__(self) -> PlayedEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class PlayedBackend:
    def __init__(self, session: Session) -> None:
        self._session = session

    def can_run(self) -> Availability:
        return Availability(available=True)

    def open(self, engine: Path) -> Session:
        return self._session


Play = Callable[..., EngineSource]


@pytest.fixture
def play(small: LoadedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Play:
    """An engine of the small model that can be run here."""

    def make(
        change: Change = lambda outputs: outputs,
        profile: Profile | None = None,
        entry: EngineEntry = ENTRY,
        runs_in: str = "",
    ) -> EngineSource:
        allowed = profile or Profile()
        session = PlayedEngine(TorchSession(small.model, precision=runs_in or entry.facts.precision), allowed, change)
        monkeypatch.setattr(
            "andrea_export.targets.tensorrt.source.engine_backend", lambda target: PlayedBackend(session)
        )
        return EngineSource(tmp_path / "engine.plan", entry, small.config, small.origin, profile=allowed)

    return make


def compared(reference: TorchSource, engine: EngineSource) -> Report:
    given = inputs_for([reference, engine], reference.identity.config, file=None, text=None, language_model=False)
    return diff(reference, [engine], given, Terms(), progress=Silent())


def test_an_engine_has_a_row_for_every_output_and_none_for_what_is_fused(
    play: Play, reference: TorchSource, small: LoadedModel
) -> None:
    report = compared(reference, play())
    assert report.verdict == "pass", report.candidates[0].reason
    assert {row.name for row in report.layers} == {spec.name for spec in graph_outputs(small.config)}
    facts = report.candidates[0].facts
    assert facts["fused_away"] and facts["tf32"] is False and facts["gelu_implementations"]


def test_an_output_that_is_not_there_fails(play: Play, reference: TorchSource) -> None:
    engine = play(lambda outputs: {name: value for name, value in outputs.items() if name != "present.1.key"})
    report = compared(reference, engine)
    row = next(row for row in report.layers if row.name == "present.1.key")
    assert report.verdict == "fail" and row.problem.startswith("missing")


def test_an_output_of_another_type_does_not_choose_its_budget(play: Play, reference: TorchSource) -> None:
    engine = play(lambda outputs: {**outputs, "logits": outputs["logits"].astype(np.float16)})
    row = next(row for row in compared(reference, engine).layers if row.name == "logits")
    assert (row.verdict, row.problem) == ("fail", "has type float16, expected fp32")


def test_an_output_of_a_type_nobody_knows_is_a_row_too(play: Play, reference: TorchSource) -> None:
    engine = play(lambda outputs: {**outputs, "logits": outputs["logits"].astype(np.complex64)})
    row = next(row for row in compared(reference, engine).layers if row.name == "logits")
    assert row.problem == "has type complex64, expected fp32"


NARROW = {
    "two rows": Profile(batch=ShapeRange(min=1, opt=1, max=2)),
    "eight tokens": Profile(sequence=ShapeRange(min=1, opt=4, max=8)),
    "no cache": Profile(past=ShapeRange(min=0, opt=0, max=0)),
    "one by one": Profile(
        sequence=ShapeRange(min=1, opt=1, max=1),
        past=ShapeRange(min=0, opt=8, max=16),
        batch=ShapeRange(min=1, opt=1, max=1),
    ),
    "a short cache": Profile(past=ShapeRange(min=0, opt=8, max=16)),
    "five rows or more": Profile(batch=ShapeRange(min=5, opt=6, max=8)),
}


@pytest.mark.parametrize("name", NARROW)
def test_a_sound_engine_of_a_narrow_profile_passes(play: Play, reference: TorchSource, name: str) -> None:
    report = compared(reference, play(profile=NARROW[name]))
    assert report.verdict == "pass", report.candidates[0].reason


def test_a_profile_that_never_begins_is_not_measured(play: Play, reference: TorchSource, small: LoadedModel) -> None:
    profile = Profile(past=ShapeRange(min=1, opt=8, max=16))
    with pytest.raises(BackendUnavailable, match="begins at 1 cached tokens"):
        cases_within(profile, small.config)
    found = compare_within_profiles(reference, [play(profile=profile)], Inputs(cases=()), progress=Silent())
    assert found[0].candidate.verdict == "not-measured" and "cached tokens" in found[0].candidate.reason


def test_validate_gives_an_engine_cases_of_its_own(play: Play, reference: TorchSource) -> None:
    profile = NARROW["eight tokens"]
    found = compare_within_profiles(reference, [play(profile=profile)], Inputs(cases=()), progress=Silent())
    assert found[0].candidate.verdict == "pass" and found[0].rows


def test_an_engine_that_may_use_tf32_is_judged_as_one_that_does(play: Play, reference: TorchSource) -> None:
    entry = replace(ENTRY, facts=replace(FACTS, tf32=True))
    report = compared(reference, play(entry=entry, runs_in="tf32"))
    assert report.verdict == "pass", report.candidates[0].reason
    assert (report.candidates[0].precision, report.candidates[0].name) == ("tf32", "tensorrt-rtx-fp32")
    assert compared(reference, play(entry=entry, runs_in="fp16")).verdict == "fail"  # its cache has another type


def test_an_engine_that_uses_tf32_unasked_fails(play: Play, reference: TorchSource) -> None:
    assert compared(reference, play(runs_in="tf32")).verdict == "fail"


def test_an_engine_that_cannot_run_here_is_not_measured_with_the_reason(
    play: Play, reference: TorchSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = play()
    monkeypatch.setattr(PlayedBackend, "can_run", lambda self: Availability(available=False, reason="needs a GPU"))
    report = compared(reference, engine)
    assert (report.candidates[0].verdict, report.candidates[0].reason) == ("not-measured", "needs a GPU")
    assert report.verdict == "fail" and not report.layers


# --- the plugin's proof -----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle's plan and library, the one inside the other."""
    (tmp_path / "engines").mkdir()
    (tmp_path / "plugins").mkdir()
    (tmp_path / PLUGIN).write_bytes(b"library" * 10)
    (tmp_path / ENTRY.file).write_bytes(b"head" + b"library" * 10 + b"tail")
    return tmp_path


def test_the_library_is_looked_for_in_the_plan_on_disk(folder: Path, small: LoadedModel) -> None:
    assert check_plugin(folder, ENTRY, small.config).verdict == "pass"
    (folder / ENTRY.file).write_bytes(b"head" + b"librarY" * 10)
    check = check_plugin(folder, ENTRY, small.config)
    assert check.verdict == "fail" and "not embedded" in check.detail
    (folder / ENTRY.file).unlink()
    assert check_plugin(folder, ENTRY, small.config).verdict == "fail"


@pytest.mark.parametrize("counts", [{"num_plugin_layers": 1}, {"num_gelu_nodes": 1}, {"num_gelu_nodes": 0}])
def test_every_block_has_one_gelu_and_one_plugin_layer(
    folder: Path, small: LoadedModel, counts: dict[str, int]
) -> None:
    assert check_plugin(folder, replace(ENTRY, facts=replace(FACTS, **counts)), small.config).verdict == "fail"


def test_a_native_twin_has_no_plugin_layer_and_no_library(folder: Path, small: LoadedModel) -> None:
    twin = replace(ENTRY, native_twin=True, facts=replace(FACTS, num_plugin_layers=0))
    assert check_plugin(folder, twin, small.config).verdict == "fail"  # the library is in it
    (folder / ENTRY.file).write_bytes(b"head")
    assert check_plugin(folder, twin, small.config).verdict == "pass"
