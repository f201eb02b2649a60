"""The operators for onnxruntime's CPU provider: what they compute as nodes, what they refuse, which paths they have."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from andrea_export.core.errors import PluginError
from andrea_export.operators.cpu_path import cpu_path, expected_path
from andrea_export.operators.linear import DOMAIN, EMBED, OPSET, Linear, embed_function
from andrea_export.sessions.onnxruntime import OnnxSession, SessionTuning
from andrea_export.targets.ort_cpu.quantization import Codes, block_codes, channel_codes

FORMS = [
    Linear(bits=bits, **keys)
    for bits in (8, 4)
    for keys in ({}, {"residual": True}, {"norm": True}, {"norm": True, "gelu": True})
]
Arrays = dict[str, np.ndarray]


def one_node(function: onnx.FunctionProto, constants: Arrays, inputs: list[str], **attributes: Any) -> bytes:
    types = {"ids": TensorProto.INT64, "codes": TensorProto.INT8 if "8" in function.name else TensorProto.UINT8}
    graph = helper.make_graph(
        [helper.make_node(function.name, list(function.input), ["y"], domain=DOMAIN, **attributes)],
        "one",
        [helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), None) for name in inputs],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    return bytes(
        helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=10).SerializeToString()
    )


def run(model: bytes, feeds: Arrays, library: Path | None) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if library is not None:
        options.register_custom_ops_library(str(library))
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feeds)[0])


def layer(form: Linear, k: int, n: int, shape: tuple[int, ...], seed: int) -> tuple[Codes, Arrays, Arrays]:
    """Codes, constants and inputs of one layer."""
    generator = np.random.default_rng(seed)
    weight = generator.standard_normal((k, n), np.float32)
    codes = channel_codes(weight) if form.bits == 8 else block_codes(weight, block_size=32)
    packed, scales = codes.packed()
    bias, gamma, beta = (generator.standard_normal(size, np.float32) for size in (n, k, k))
    constants = {"codes": packed, "scales": scales, "bias": bias}
    if form.norm:
        constants |= {"gamma": gamma, "beta": beta}
    feeds = {"x": generator.standard_normal((*shape, k), np.float32)}
    if form.residual:
        feeds["residual"] = generator.standard_normal((*shape, n), np.float32)
    return codes, constants, feeds


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    form=st.sampled_from(FORMS),
    k=st.integers(1, 5).map(lambda count: 32 * count),
    odd=st.integers(0, 31),
    n=st.integers(1, 70),
    shape=st.lists(st.integers(0, 12), max_size=3).map(tuple),
    seed=st.integers(0, 1 << 30),
)
def test_the_operators_are_their_functions(
    cpu_library: Path, form: Linear, k: int, odd: int, n: int, shape: tuple[int, ...], seed: int
) -> None:
    """In any rank, with no rows at all, with outputs and inputs that fill no whole tile."""
    k = k - odd if form.bits == 8 else k
    codes, constants, feeds = layer(form, k, n, shape, seed)
    attributes = {"largest_activation": float(codes.largest_activation), **({"epsilon": 1e-5} if form.norm else {})}
    model = one_node(form.function, constants, list(feeds), **attributes)
    found = run(model, feeds, cpu_library)
    assert found.shape == (*shape, n) and found.dtype == np.float32
    if found.size:
        wanted = run(model, feeds, None)
        # One activation may fall on the other side of its step, where the norm is rounded otherwise.
        step = 3 * np.abs(codes.weights()).max() * 8 / codes.largest_activation
        assert np.abs(found - wanted).max() <= step + 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 5)])
def test_an_embedding_is_rows_of_the_packed_codes(cpu_library: Path, shape: tuple[int, ...]) -> None:
    generator = np.random.default_rng(0)
    codes = channel_codes(generator.standard_normal((40, 50), np.float32))
    packed, scales = codes.packed()
    ids = generator.integers(0, 50, shape)
    model = one_node(embed_function(), {"codes": packed, "scales": scales}, ["ids"], width=40)
    for library in (cpu_library, None):
        assert np.array_equal(run(model, {"ids": np.asarray(ids)}, library), codes.weights().T[ids])


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "codes of another layout": ({"codes": np.zeros((3, 8, 16, 4), np.int8)}, "not packed as \\[2, 8, 16, 4\\]"),
    "codes without layout": ({"codes": np.zeros(10, np.int8)}, "not packed as"),
    "too few scales": ({"scales": np.zeros(20, np.float32)}, "not one for each output"),
    "a scalar": ({"x": np.array(1, np.float32)}, "x is a scalar"),
    "no inputs": ({"x": np.zeros((2, 0), np.float32)}, "an empty row"),
    "no outputs": ({"bias": np.zeros(0, np.float32)}, "an empty row"),
    "a bias of two axes": ({"bias": np.zeros((1, 20), np.float32)}, "bias is not a vector"),
    "a short norm": ({"gamma": np.zeros(5, np.float32)}, "norm's scale or bias does not have the length"),
    "a residual of another shape": ({"residual": np.zeros((4, 20), np.float32)}, "does not have the result's shape"),
    "nine axes": ({"x": np.zeros((1,) * 8 + (32,), np.float32)}, "more than 8 dimensions"),
}


@pytest.mark.parametrize(("changed", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_what_does_not_fit_is_an_error_in_words(cpu_library: Path, changed: Arrays, message: str) -> None:
    form = Linear(bits=8, residual="residual" in changed, norm="gamma" in changed)
    _, constants, feeds = layer(form, 32, 20, (3,), 0)
    attributes = {"largest_activation": 8191.0, **({"epsilon": 1e-5} if form.norm else {})}
    model = one_node(form.function, {}, list(form.function.input), **attributes)
    with pytest.raises(Exception, match=f"com.andrea {form.op_type}: .*{message}|{message}"):
        run(model, {**constants, **feeds, **changed}, cpu_library)


def test_wrong_blocks_are_an_error_in_words(cpu_library: Path) -> None:
    form = Linear(bits=4)
    _, constants, feeds = layer(form, 64, 20, (3,), 0)
    model = one_node(form.function, {}, list(form.function.input), largest_activation=8191.0)
    for scales in (np.zeros((3, 32), np.float32), np.zeros((4, 32), np.float32), np.zeros(32, np.float32)):
        with pytest.raises(Exception, match="the scales are not"):
            run(model, {**constants, **feeds, "scales": scales}, cpu_library)


@pytest.mark.parametrize("largest", [0.0, 8192.0, float("nan")])
def test_activations_beyond_14_bits_are_refused(cpu_library: Path, largest: float) -> None:
    form = Linear(bits=8)
    _, constants, feeds = layer(form, 32, 20, (3,), 0)
    with pytest.raises(Exception, match="largest_activation is not in 1 to 8191"):
        run(one_node(form.function, constants, ["x"], largest_activation=largest), feeds, cpu_library)


@pytest.mark.parametrize("bad", [-1, 64, 1 << 40])
def test_an_id_that_is_no_row_is_an_error(cpu_library: Path, bad: int) -> None:
    packed, scales = channel_codes(np.ones((40, 50), np.float32)).packed()
    model = one_node(embed_function(), {"codes": packed, "scales": scales}, ["ids"], width=40)
    with pytest.raises(Exception, match=f"com.andrea {EMBED}: an id is not one of the rows"):
        run(model, {"ids": np.array([0, bad])}, cpu_library)


def test_a_library_that_is_none_is_an_error_in_words(tiny_onnx: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "libandrea_cpu.so"
    foreign.write_bytes(b"for another machine")
    with pytest.raises(PluginError, match=r"libandrea_cpu\.so cannot be loaded"):
        OnnxSession(tiny_onnx, tuning=SessionTuning(operators=foreign))


def test_the_library_needs_no_more_than_any_linux_has(cpu_library: Path) -> None:
    """It exports two functions, and what it needs of glibc is as old as 2.14."""
    listed = subprocess.run(["nm", "-D", cpu_library], capture_output=True, text=True, check=True).stdout
    defined = {line.split()[-1] for line in listed.splitlines() if " T " in line}
    assert defined == {"RegisterCustomOps", "andrea_cpu_path"}
    versions = {tuple(map(int, word.split("@GLIBC_")[1].split("."))) for word in listed.split() if "@GLIBC_" in word}
    assert max(versions) <= (2, 14)


def test_the_path_that_linux_lets_expect_is_the_one_the_library_takes(cpu_library: Path) -> None:
    assert cpu_path(cpu_library) == expected_path()


@pytest.mark.parametrize("asked", ["portable", "avx2", "of-another-processor"])
def test_a_path_can_be_asked_for_where_the_processor_has_it(cpu_library: Path, asked: str) -> None:
    code = (
        "import sys; from pathlib import Path; from andrea_export.operators.cpu_path import cpu_path;"
        "print(cpu_path(Path(sys.argv[1])))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, cpu_library],
        env={**os.environ, "ANDREA_CPU_PATH": asked},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    has_it = asked == "portable" or (asked == "avx2" and expected_path() in ("avx2", "avx-vnni", "avx512-vnni"))
    assert found == (asked if has_it else expected_path())


@pytest.mark.parametrize(
    ("flags", "path"),
    [
        ("flags\t\t: fpu sse2 avx avx2 fma", "avx2"),
        ("flags : avx2 fma avx_vnni", "avx-vnni"),
        ("flags : avx2 fma avx512f avx512bw avx512vl avx512_vnni", "avx512-vnni"),
        ("flags : fpu sse2 avx", "portable"),
        ("Features\t: fp asimd asimddp", "dot-product"),
        ("Features : fp asimd", "portable"),
        ("", "portable"),
    ],
)
def test_paths_by_the_flags_of_processors(tmp_path: Path, flags: str, path: str) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor : 0\n{flags}\n")
    assert expected_path(tmp_path / "cpuinfo") == path
    assert expected_path(tmp_path / "none") == "portable"


def test_arm_gives_the_reference_too(arm_programs: Path) -> None:
    """Under qemu-user: with the dot product, and on a processor without it, which takes the portable path."""
    for processor, paths in (("max", ["dot-product", "portable"]), ("cortex-a53", ["portable"])):
        command = [shutil.which("qemu-aarch64") or "", "-cpu", processor, "-L", "/usr/aarch64-linux-gnu"]
        finished = subprocess.run([*command, arm_programs / "andrea_cpu_checks"], capture_output=True, text=True)
        assert finished.returncode == 0, finished.stdout
        assert finished.stderr.split() == paths


@pytest.mark.parametrize("programs", ["cpp_programs", "sanitized_programs", "thread_checked_programs"])
def test_every_path_of_this_processor_gives_the_reference(request: pytest.FixtureRequest, programs: str) -> None:
    """Bit for bit, on two threads, over drawn shapes: plain, and under the address, undefined and thread sanitizers."""
    program = request.getfixturevalue(programs) / "andrea_cpu_checks"
    finished = subprocess.run([program], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    paths = finished.stderr.split()
    assert paths[0] == expected_path() and paths[-1] == "portable"
    assert json.loads(finished.stdout)["checks"] > 300 * len(paths)
