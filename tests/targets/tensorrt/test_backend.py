"""What TensorRT's backends answer without building: availability, profiles, and sessions over a stand-in worker."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from andrea_export.core import installed
from andrea_export.core.dtypes import DTYPES
from andrea_export.core.errors import BackendUnavailable, RunError, UsageError
from andrea_export.core.names import graph_inputs
from andrea_export.core.precision import PRECISIONS
from andrea_export.core.profile import Profile, ShapeRange
from andrea_export.targets.tensorrt import backend as tensorrt
from andrea_export.targets.tensorrt.backend import EngineBackend, EngineSession
from andrea_export.targets.tensorrt.child import Child
from andrea_export.targets.tensorrt.facts import profile_shapes
from andrea_export.targets.tensorrt.worker import read_tensor, write_tensor
from andrea_model.config import PRESETS

CONFIG = PRESETS["andrea-tiny"]


@pytest.fixture(autouse=True)
def kept_logs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logs that errors point to are kept in pytest's folder instead of the machine's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("logs")))


# --- availability ----------------------------------------------------------------------------------------------------


def test_a_missing_package_is_named_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])  # nothing can be found
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tensorrt", "tensorrt_rtx")]:
        monkeypatch.delitem(sys.modules, name)  # nor was it before, by another test
    monkeypatch.setattr(tensorrt, "why_no_gpu", lambda: "")
    for target, module, extra in (("tensorrt", "tensorrt", "tensorrt"), ("tensorrt-rtx", "tensorrt_rtx", "rtx")):
        for availability in (EngineBackend(target).can_build(), EngineBackend(target).can_run()):
            assert not availability.available
            assert availability.reason.startswith(f"the package {module} is not installed")
            assert availability.hint == f"pip install 'andrea-export[{extra}]'"


def test_no_gpu_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "_PROBE", installed._PROBE.replace("libcuda.so.1", "libcuda-absent.so.1"))
    assert installed.why_no_gpu() == "needs a GPU: libcuda-absent.so.1 cannot be loaded"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "int cuInit(int f){return 100;} int cuDeviceGetCount(int*c){*c=0;return 0;}",
            "the driver reports CUDA error 100",
        ),
        ("int cuInit(int f){return 0;} int cuDeviceGetCount(int*c){*c=0;return 0;}", "the driver finds no GPU"),
        ("#include <stdlib.h>\nint cuInit(int f){abort();}", "asking the driver ended with exit code -6"),
        ("int cuInit(int f){return 0;} int cuDeviceGetCount(int*c){*c=2;return 0;}", None),
    ],
    ids=["error", "none", "abort", "two"],
)
def test_what_the_driver_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, reason: str | None) -> None:
    source, library = tmp_path / "driver.c", tmp_path / "driver.so"
    source.write_text(body)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setattr(installed, "_PROBE", installed._PROBE.replace("libcuda.so.1", str(library)))
    assert installed.why_no_gpu() == (f"needs a GPU: {reason}" if reason else "")


def test_a_driver_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "_PROBE", "import time; time.sleep(60)")
    monkeypatch.setattr(installed, "_PROBE_TIMEOUT_S", 0.5)
    assert installed.why_no_gpu() == "needs a GPU: the driver did not answer in 0.5 s"


def test_asking_imports_nothing() -> None:
    program = """
        import sys
        from andrea_export.targets.tensorrt.flavours import engine_backend
        for target in ("tensorrt", "tensorrt-rtx"):
            engine_backend(target).can_build()
            engine_backend(target).can_run()
        print([name for name in ("tensorrt", "tensorrt_rtx", "polygraphy", "torch") if name in sys.modules])
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_opening_where_nothing_can_run_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorrt_rtx", reason="the package tensorrt_rtx is not installed")
    monkeypatch.setattr(tensorrt, "why_no_gpu", lambda: "needs a GPU: no driver")
    with pytest.raises(BackendUnavailable, match=r"cannot run tensorrt-rtx engines: needs a GPU: no driver"):
        EngineBackend("tensorrt-rtx").open(tmp_path / "engine.plan")


def test_a_missing_engine_is_a_run_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorrt_rtx", reason="the package tensorrt_rtx is not installed")
    monkeypatch.setattr(tensorrt, "why_no_gpu", lambda: "")
    with pytest.raises(RunError, match="no such file"):
        EngineBackend("tensorrt-rtx").open(tmp_path / "engine.plan")


def test_the_library_name_the_wheel_lacks_is_given_to_the_child(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="the package tensorrt_rtx is not installed")
    folder = tensorrt._unversioned_rtx_library(tmp_path)
    assert folder is not None, "the wheel ships libtensorrt_rtx.so now: the workaround can go"
    (link,) = folder.iterdir()
    assert link.name == "libtensorrt_rtx.so" and link.resolve().name == "libtensorrt_rtx.so.1"


# --- profiles --------------------------------------------------------------------------------------------------------


def test_default_profile_agrees_with_itself_at_every_point() -> None:
    shapes = profile_shapes(CONFIG, PRECISIONS["fp16"], Profile())
    assert list(shapes) == [spec.name for spec in graph_inputs(CONFIG)]
    assert shapes["input_ids"] == shapes["position_ids"] == [[1, 1], [1, 128], [8, 1024]]
    assert shapes["past_key_values.1.value"] == [[1, 4, 0, 16], [1, 4, 128, 16], [8, 4, 1023, 16]]
    assert shapes["attention_mask"] == [[1, 1], [1, 256], [8, 2047]]


@pytest.mark.parametrize(
    ("profile", "problem"),
    [
        (Profile(sequence=ShapeRange(min=1, opt=1, max=1025)), "sequence.max is 1025"),
        (Profile(past=ShapeRange(min=0, opt=0, max=1024)), "past.max is 1024, which leaves no place for a new token"),
        (
            Profile(sequence=ShapeRange(min=1, opt=900, max=1024), past=ShapeRange(min=0, opt=200, max=1023)),
            "sequence.opt + past.opt is 1100",
        ),
        (
            Profile(sequence=ShapeRange(min=600, opt=600, max=600), past=ShapeRange(min=600, opt=600, max=600)),
            "sequence.min + past.min is 1200; sequence.opt + past.opt is 1200",
        ),
    ],
)
def test_a_profile_the_model_cannot_have_is_refused(profile: Profile, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        profile_shapes(CONFIG, PRECISIONS["fp32"], profile)
    assert str(caught.value) == f"the profile does not fit a context of 1024 tokens: {problem}"


# --- sessions --------------------------------------------------------------------------------------------------------

# Gives back every input as the output of the same name, through the real worker's own reading and writing of tensors.
ECHO = """
import json, os, sys
from pathlib import Path
from andrea_export.targets.tensorrt.worker import read_tensor, write_tensor
replies = os.fdopen(int(sys.argv[1]), "w")
for line in sys.stdin:
    request = json.loads(line)
    if request["verb"] == "open":
        result = {"outputs": ["b", "a"]}
    elif "crash" in request["feeds"]:
        os.abort()
    else:
        result = {
            name: write_tensor(read_tensor(layout), Path(request["folder"]) / f"output-{index}")
            for index, (name, layout) in enumerate(request["feeds"].items())
        }
    print(json.dumps({"event": "result", "result": result}), file=replies, flush=True)
"""


@pytest.fixture
def session(tmp_path: Path) -> EngineSession:
    worker = tmp_path / "echo.py"
    worker.write_text(ECHO)

    def start_child(folder: Path) -> Child:
        command = [sys.executable, str(worker)]
        return Child(product="TensorRT", command=command, environment={}, folder=folder, failure=RunError)

    return EngineSession(engine=Path("engines/tensorrt-rtx-fp16.plan"), start_child=start_child)


def test_a_session_carries_every_type_and_shape(session: EngineSession) -> None:
    generator = np.random.default_rng(0)
    feeds = {
        "half": generator.standard_normal((2, 3, 5)).astype(np.float16),
        "brain": generator.standard_normal((4, 1)).astype(ml_dtypes.bfloat16),
        "single": generator.standard_normal((2, 2)).astype(np.float32).T,  # not contiguous
        "empty": np.zeros((1, 4, 0, 16), np.float16),
        "ids": np.array([[1, -(2**40)]]),
        "flag": np.array([True, False]),
        "scalar": np.array(3.0, np.float32),
    }
    with session:
        assert session.name == "tensorrt-rtx-fp16"
        assert session.output_names == ("b", "a")
        for _ in range(2):
            outputs = session.run(feeds)
            assert list(outputs) == list(feeds)
            for name, array in feeds.items():
                assert outputs[name].dtype == array.dtype and outputs[name].shape == array.shape, name
                np.testing.assert_array_equal(outputs[name], array)


def test_a_crash_while_running_is_a_run_error(session: EngineSession) -> None:
    with session, pytest.raises(RunError, match=r"TensorRT crashed \(SIGABRT\)"):
        session.run({"crash": np.zeros(1, np.float32)})


def test_an_input_of_a_foreign_type_is_a_run_error(session: EngineSession) -> None:
    with session, pytest.raises(RunError, match="input a: numpy dtype complex64 is not in the dtype table"):
        session.run({"a": np.zeros(1, np.complex64)})


@pytest.mark.parametrize("name", [name for name in DTYPES if name != "fp64"])
def test_tensors_survive_the_file(tmp_path: Path, name: str) -> None:
    array = np.array([[0, 1], [1, 0], [1, 1]]).astype(DTYPES[name].numpy)
    (tmp_path / "in").write_bytes(array.tobytes())
    layout = {"dtype": name, "shape": [3, 2], "file": str(tmp_path / "in")}
    written = write_tensor(read_tensor(layout), tmp_path / "out")
    assert json.loads(json.dumps(written)) == {"dtype": name, "shape": [3, 2], "file": str(tmp_path / "out")}
    assert (tmp_path / "out").read_bytes() == array.tobytes()
