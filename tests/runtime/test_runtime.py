"""The runtime on every precision: torch's tokens, batches, chunks, sampling, stops, and what it refuses."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import andrea_export
from andrea_export.bundle.contents import PLUGIN
from andrea_export.bundle.manifest import file_entry, open_bundle, seal
from andrea_export.core.errors import (
    BackendUnavailable,
    BundleError,
    PluginError,
    RunError,
    UsageError,
    ValidationError,
)
from andrea_export.core.hashing import sha256_of
from andrea_export.runtime import Model, Sampling, shared_cache
from andrea_export.runtime import open as runtime_open
from andrea_export.runtime.cores import num_usable_cores
from andrea_export.runtime.engine import raise_run_error
from andrea_export.runtime.open import open_growing, open_shared
from andrea_export.runtime.shared_cache import SharedCacheEngine
from andrea_export.sessions.onnxruntime import PROVIDERS, check_assignment
from andrea_export.targets.ort_cpu.derive import derive_ort_cpu
from andrea_export.targets.ort_cpu.files import files_of
from andrea_export.targets.recipe import OrtCpu
from andrea_export.weights.load import LoadedModel

PRECISIONS = ("fp32", "int8", "int4")
PROMPT = (5, 17, 42, 300, 8, 0, 320, 99)


def opened(bundle: Path, precision: str = "fp32") -> Model:
    return andrea_export.load(bundle, provider="cpu", precision=precision)


def torch_greedy(loaded: LoadedModel, prompt: tuple[int, ...], number: int) -> list[int]:
    tokens: list[int] = []
    new, past = list(prompt), None
    with torch.inference_mode():
        for _ in range(number):
            logits, past = loaded.model(torch.tensor([new]), past=past)
            new = [int(logits[0, -1].argmax())]
            tokens += new
    return tokens


def test_fp32_says_what_torch_says_for_200_tokens(tiny: LoadedModel, ort_bundle: Path) -> None:
    wanted = torch_greedy(tiny, PROMPT, 200)
    assert len(set(wanted)) > 3, "a model that says one token for ever compares nothing"
    with opened(ort_bundle) as model:
        assert model.graph == "ort-cpu-fp32.onnx"
        assert list(model.generate(PROMPT, max_new_tokens=200)) == wanted
        assert list(model.generate(PROMPT, max_new_tokens=200)) == wanted, "greedy is deterministic"


@pytest.mark.full
def test_fp32_of_120m_says_what_torch_says_for_200_tokens(andrea_120m: LoadedModel, andrea_120m_onnx: Path) -> None:
    folder, config = andrea_120m_onnx.parent, andrea_120m.config
    derive_ort_cpu(andrea_120m_onnx, config, precision="fp32", options=OrtCpu(), folder=folder)
    files = files_of("fp32", "dynamic")
    with open_shared(folder, files, config, num_usable_cores()) as engine:
        said = [int(engine.start([PROMPT], len(PROMPT) + 200)[0].argmax())]
        while len(said) < 200:
            said.append(int(engine.step(said[-1:])[0].argmax()))
    assert said == torch_greedy(andrea_120m, PROMPT, 200)


def test_the_canonical_graph_says_the_same(tiny: LoadedModel, built_bundle: Path) -> None:
    with opened(built_bundle) as model:
        assert model.graph == "model.onnx"
        assert list(model.generate(PROMPT, max_new_tokens=50)) == torch_greedy(tiny, PROMPT, 50)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("length", [1, 2, 127, 128, 129, 300])
def test_a_prompt_in_chunks_leads_where_one_run_leads(ort_bundle: Path, precision: str, length: int) -> None:
    prompt = [(7 * index) % 321 for index in range(length)]
    with opened(ort_bundle, precision) as model:
        chunked = model.prefill([prompt]).copy()
        model.engine._chunk = 1024  # type: ignore[attr-defined]
        whole = model.prefill([prompt]).copy()
    # int8 rounds a chunk's activations on the chunk's own range, so its logits move with the chunks, by what int8
    # costs at all; fp32 and the last token of int4 do not round by chunk, int4's cache (filled in int8) does.
    allowed = 1e-4 if precision == "fp32" else 0.1 * np.abs(whole).max()
    assert np.abs(chunked - whole).max() <= allowed


@pytest.mark.parametrize("precision", PRECISIONS)
def test_rows_of_a_batch_say_what_they_say_alone(ort_bundle: Path, precision: str) -> None:
    prompts = [PROMPT, PROMPT[:3], tuple(range(100, 240)), (7,)]
    with opened(ort_bundle, precision) as model:
        rows = list(zip(*model.generate_batch(prompts, max_new_tokens=30), strict=True))
        alone = [tuple(model.generate(prompt, max_new_tokens=30)) for prompt in prompts]
    assert rows == alone


def test_rows_of_a_padded_batch_say_what_they_say_alone(built_bundle: Path) -> None:
    prompts = [PROMPT, PROMPT[:3], tuple(range(100, 140))]
    with opened(built_bundle) as model:
        rows = list(zip(*model.generate_batch(prompts, max_new_tokens=20), strict=True))
        assert rows == [tuple(model.generate(prompt, max_new_tokens=20)) for prompt in prompts]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_context_can_be_filled_to_its_last_position(ort_bundle: Path, precision: str) -> None:
    prompt = [index % 321 for index in range(1021)]
    with opened(ort_bundle, precision) as model:
        assert len(list(model.generate(prompt, max_new_tokens=3))) == 3
        with pytest.raises(UsageError, match="1025 positions, and the model has 1024"):
            model.generate(prompt, max_new_tokens=4)


def test_the_last_positions_are_torchs(tiny: LoadedModel, ort_bundle: Path) -> None:
    prompt = tuple(index % 321 for index in range(1021))
    with opened(ort_bundle) as model:
        assert list(model.generate(prompt, max_new_tokens=3)) == torch_greedy(tiny, prompt, 3)


def test_a_seed_repeats_and_another_does_not(ort_bundle: Path) -> None:
    with opened(ort_bundle) as model:

        def drawn(seed: int) -> list[int]:
            sampling = Sampling(temperature=1.0, top_k=50, top_p=0.9, seed=seed)
            return list(model.generate(PROMPT, max_new_tokens=40, sampling=sampling))

        assert drawn(3) == drawn(3)
        assert drawn(3) != drawn(4)
        sampling = Sampling(temperature=1.0, seed=3)
        rows = list(zip(*model.generate_batch([PROMPT, PROMPT[:2]], max_new_tokens=9, sampling=sampling), strict=True))
        assert list(rows[1]) == list(model.generate(PROMPT[:2], max_new_tokens=9, sampling=sampling))


def test_a_stop_token_ends_its_row_and_no_other(tiny: LoadedModel, ort_bundle: Path) -> None:
    wanted = torch_greedy(tiny, PROMPT, 30)
    stop = max(set(wanted), key=wanted.index)  # the token that takes longest to come
    end = wanted.index(stop)
    assert end > 0
    sampling = Sampling(stop=(stop,))
    with opened(ort_bundle) as model:
        assert list(model.generate(PROMPT, max_new_tokens=30, sampling=sampling)) == wanted[:end]
        other = list(model.generate(PROMPT[:2], max_new_tokens=30, sampling=sampling))
        rows = list(zip(*model.generate_batch([PROMPT, PROMPT[:2]], max_new_tokens=30, sampling=sampling), strict=True))
    assert [token for token in rows[0] if token is not None] == wanted[:end]
    assert [token for token in rows[1] if token is not None] == other


def test_a_generation_that_is_left_can_be_followed_by_another(tiny: LoadedModel, ort_bundle: Path) -> None:
    with opened(ort_bundle) as model:
        next(model.generate((1, 2, 3), max_new_tokens=9))
        assert list(model.generate(PROMPT, max_new_tokens=9)) == torch_greedy(tiny, PROMPT, 9)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_text_that_was_left_says_so_and_gives_no_token(ort_bundle: Path, precision: str) -> None:
    with opened(ort_bundle, precision) as model:
        wanted = list(model.generate(PROMPT, max_new_tokens=6))
        for interruption in (
            lambda: next(model.generate(PROMPT[:2], max_new_tokens=3)),
            lambda: next(model.generate_batch([PROMPT, PROMPT[:3]], max_new_tokens=3)),
            lambda: model.prefill([PROMPT[::-1]]),
        ):
            left = model.generate(PROMPT, max_new_tokens=6)
            assert [next(left), next(left)] == wanted[:2]
            interruption()
            with pytest.raises(UsageError, match="left for another one"):
                next(left)
        left = model.generate(PROMPT, max_new_tokens=6)
        next(left)
    with pytest.raises(UsageError, match="the model is closed"):
        next(left)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_an_earlier_text_left_in_the_cache_is_never_read(ort_bundle: Path, precision: str) -> None:
    """The buffers of a text of the same shape are used again: full of NaN, they give the very same logits."""
    prompts = [PROMPT, PROMPT[:3]]
    with opened(ort_bundle, precision) as model:
        engine = model.engine
        assert isinstance(engine, SharedCacheEngine)
        wanted = [engine.start(prompts, 40).copy(), engine.step([1, 2]).copy(), engine.step([3, 4]).copy()]
        for cache in engine._caches.values():
            cache[:] = np.nan
        found = [engine.start(prompts, 40).copy(), engine.step([1, 2]).copy(), engine.step([3, 4]).copy()]
        assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_a_forked_process_opens_its_own_sessions(ort_bundle: Path) -> None:
    """Also where a thread of the parent is just opening one: its lock must not be held for ever in the child."""
    program = f"""
import os, andrea_export
from andrea_export.runtime import open as runtime_open
bundle = {str(ort_bundle)!r}
with andrea_export.load(bundle, provider="cpu", precision="int8") as model:
    wanted = list(model.generate([5, 17], max_new_tokens=4))
    with runtime_open._opening:
        child = os.fork()
    if child == 0:
        with andrea_export.load(bundle, provider="cpu", precision="int8") as own:
            os._exit(list(own.generate([5, 17], max_new_tokens=4)) != wanted)
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", program], timeout=120).returncode == 0


def test_threads_may_share_a_bundle(ort_bundle: Path) -> None:
    wanted = [list(opened(ort_bundle, name).generate(PROMPT, max_new_tokens=24)) for name in PRECISIONS]

    def said(name: str) -> list[int]:
        with opened(ort_bundle, name) as model:
            return list(model.generate(PROMPT, max_new_tokens=24))

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(said, PRECISIONS * 4)) == wanted * 4


def test_steps_allocate_no_buffers(ort_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(ort_bundle) as model:
        engine = model.engine
        assert isinstance(engine, SharedCacheEngine)
        logits = engine.start([PROMPT], 40)
        engine.step([7])  # the first one binds

        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("a step binds or allocates")

        for name in ("zeros", "empty", "ones", "asarray", "array"):
            monkeypatch.setattr(np, name, refuse)
        monkeypatch.setattr(engine, "_bind", refuse)
        assert all(engine.step([token]) is logits for token in (1, 2, 3))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_interrupted_binding_is_not_kept(ort_bundle: Path, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """Ctrl-C may come anywhere; the next text of that shape must not find half of it."""
    with opened(ort_bundle, precision) as model:
        wanted = list(model.generate(PROMPT, max_new_tokens=4))
    bind_output = shared_cache._bind_output
    for stop_at in (1, 3, 5, 6, 8, 9):
        calls = itertools.count(1)

        def interrupted(*arguments: Any, calls: Iterator[int] = calls, stop_at: int = stop_at) -> None:
            if next(calls) == stop_at:
                raise KeyboardInterrupt
            bind_output(*arguments)

        with opened(ort_bundle, precision) as model:
            with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
                patched.setattr(shared_cache, "_bind_output", interrupted)
                list(model.generate(PROMPT, max_new_tokens=4))
            assert next(calls) > stop_at, "the interruption never came"
            assert list(model.generate(PROMPT, max_new_tokens=4)) == wanted


def test_a_step_before_a_prompt(ort_bundle: Path) -> None:
    with opened(ort_bundle) as model, pytest.raises(RunError, match="a step before a prompt"):
        model.engine.step([1])


def test_texts_of_about_one_length_have_one_shape(ort_bundle: Path) -> None:
    with opened(ort_bundle) as model:
        engine = model.engine
        assert isinstance(engine, SharedCacheEngine)
        shapes = set()
        for length in (1, 60, 100):
            engine.start([(1,) * length], length + 20)
            shapes.add(next(iter(engine._caches.values())).shape[2])
        engine.start([PROMPT], model.config.n_ctx)
        assert shapes == {128} and next(iter(engine._caches.values())).shape[2] == model.config.n_ctx


def test_what_draws_buffers_from_onnxruntimes_pool(ort_bundle: Path) -> None:
    """Not the graphs whose attention would wait at its lock; the canonical graph, whose peak would grow."""
    config = open_bundle(ort_bundle).config
    for precision in PRECISIONS:
        with open_shared(ort_bundle, files_of(precision, "dynamic"), config, 1) as engine:
            for session in (engine._decode, engine._prefill):
                assert not session.get_session_options().enable_cpu_mem_arena, precision
    growing = open_growing(ort_bundle, "cpu", config, 1, False)
    assert growing._session.get_session_options().enable_cpu_mem_arena
    growing.close()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_texts_of_one_shape_are_bound_once(ort_bundle: Path, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """And say what they say in a model of their own, however their prompts' lengths come and go."""
    monkeypatch.setattr("andrea_export.runtime.shared_cache._MOST_BINDINGS", 4)
    prompts = [PROMPT[:length] for length in (3, 8, 2, 8, 1, 5, 6, 7, 3)]

    def said(engine: SharedCacheEngine, prompt: tuple[int, ...]) -> list[int]:
        tokens = [int(engine.start([prompt], 12)[0].argmax())]
        return [*tokens, int(engine.step(tokens)[0].argmax())]

    with opened(ort_bundle, precision) as model:
        engine = model.engine
        assert isinstance(engine, SharedCacheEngine)
        found = [said(engine, prompt) for prompt in prompts]
        first = said(engine, PROMPT)
        monkeypatch.setattr("andrea_export.runtime.shared_cache._bind_output", None)
        assert said(engine, PROMPT) == first
    monkeypatch.undo()
    alone = []
    for prompt in prompts:
        with opened(ort_bundle, precision) as model:
            alone.append(said(model.engine, prompt))  # type: ignore[arg-type]
    assert found == alone


@pytest.mark.parametrize(
    ("prompt", "number", "sampling", "text"),
    [
        ((), 1, Sampling(), "the prompt is empty"),
        ((321,), 1, Sampling(), "token id 321 is outside"),
        ((-1,), 1, Sampling(), "token id -1 is outside"),
        ((1,), 0, Sampling(), "0 new tokens asked for"),
        ((1,), -3, Sampling(), "-3 new tokens asked for"),
        ((1,), 1024, Sampling(), "1025 positions"),
        ((1,), 1, Sampling(temperature=0.0), "temperature is 0"),
        ((1,), 1, Sampling(temperature=-1.0), "temperature is -1"),
        ((1,), 1, Sampling(temperature=float("nan")), "temperature is nan"),
        ((1,), 1, Sampling(temperature=float("inf")), "temperature is inf"),
        ((1,), 1, Sampling(temperature=1.0, top_p=0.0), "top-p is 0"),
        ((1,), 1, Sampling(temperature=1.0, top_p=1.5), r"top-p is 1\.5"),
        ((1,), 1, Sampling(temperature=1.0, top_p=float("nan")), "top-p is nan"),
        ((1,), 1, Sampling(temperature=1.0, top_k=0), "top-k is 0"),
        ((1,), 1, Sampling(top_k=5), "need a temperature"),
        ((1,), 1, Sampling(seed=-1), "seed is -1"),
        ((1,), 1, Sampling(stop=(321,)), "stop token 321"),
        ((1,), 1, Sampling(temperature="warm"), "temperature is 'warm', expected a number"),
        ((1,), 1, Sampling(temperature=True), "temperature is 'True', expected a number"),
        ((1,), 1, Sampling(temperature=10**400), "temperature is '10{39}', expected a number"),
        ((1,), 1, Sampling(temperature=Fraction(-1, 2)), r"temperature is -0\.5, expected a number above 0"),
        ((1,), 1, Sampling(temperature=1.0, top_k=2.5), r"top-k is 2\.5, expected a whole number"),
        ((1,), 1, Sampling(seed=None), "seed is None, expected a whole number"),
        ((1,), 1, Sampling(stop=7), "stop is 7, expected a tuple of token ids"),
        ((1,), 1, Sampling(stop=b"\n"), r"stop is b'\\n', expected a tuple of token ids"),
        ((1,), 1, Sampling(stop=("a",)), "a stop token is 'a', expected a whole number"),
        ((1,), 1, "greedy", "sampling is 'greedy', expected"),
        ((1,), 1, {}, "sampling is {}, expected"),
        ((1,), 2.0, Sampling(), r"max_new_tokens is 2\.0, expected a whole number"),
        ((1,), True, Sampling(), "max_new_tokens is True, expected a whole number"),
    ],
)
def test_what_cannot_be_generated(
    ort_bundle: Path, prompt: tuple[int, ...], number: int, sampling: Sampling, text: str
) -> None:
    with opened(ort_bundle) as model, pytest.raises(UsageError, match=text):
        model.generate(prompt, max_new_tokens=number, sampling=sampling)


def test_prompts_of_any_integers(ort_bundle: Path) -> None:
    with opened(ort_bundle) as model:
        wanted = list(model.generate(PROMPT, max_new_tokens=4))
        assert list(model.generate(PROMPT, max_new_tokens=np.int64(4))) == wanted
        for prompt in (np.array(PROMPT), np.array(PROMPT, np.int32), torch.tensor(PROMPT), list(PROMPT)):
            assert list(model.generate(prompt, max_new_tokens=4)) == wanted
        whole = np.arange(model.config.n_ctx) % 7
        assert np.isfinite(model.prefill([whole])).all()


@pytest.mark.parametrize("prompt", ["abc", [1.5], [[1]], None, np.array([[1, 2]])])
def test_what_is_not_a_prompt(ort_bundle: Path, prompt: Any) -> None:
    with opened(ort_bundle) as model:
        for refused in (
            lambda: model.generate(prompt, max_new_tokens=1),
            lambda: model.prefill([prompt]),
            lambda: model.generate_batch([PROMPT, prompt], max_new_tokens=1),
        ):
            with pytest.raises(UsageError, match="not a sequence of token ids"):
                refused()
        with pytest.raises(UsageError, match="expected a whole number"):
            model.generate(PROMPT, max_new_tokens=2.5)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="there is no prompt"):
            model.prefill([])
        with pytest.raises(UsageError, match=f"the prompt has {model.config.n_ctx + 1} tokens"):
            model.prefill([[1] * (model.config.n_ctx + 1)])


@pytest.mark.parametrize("prompts", [None, 5])
def test_what_are_not_prompts(ort_bundle: Path, prompts: Any) -> None:
    with opened(ort_bundle) as model, pytest.raises(UsageError, match=f"the prompts are {prompts}, expected a list"):
        model.generate_batch(prompts, max_new_tokens=1)


def test_next_to_no_temperature_is_greedy(ort_bundle: Path) -> None:
    with opened(ort_bundle) as model:
        cold = Sampling(temperature=5e-324)
        assert list(model.generate(PROMPT, max_new_tokens=4, sampling=cold)) == list(
            model.generate(PROMPT, max_new_tokens=4)
        )


def test_no_prompt_at_all(ort_bundle: Path) -> None:
    with opened(ort_bundle) as model, pytest.raises(UsageError, match="no prompt"):
        model.generate_batch([], max_new_tokens=1)


def test_a_closed_model_says_so(ort_bundle: Path) -> None:
    model = opened(ort_bundle)
    model.close()
    model.close()
    with pytest.raises(UsageError, match="the model is closed"):
        list(model.generate((1,), max_new_tokens=1))


def test_a_precision_that_was_not_built(built_bundle: Path) -> None:
    with pytest.raises(BundleError, match=r"has no int8 \(it has fp32\)") as caught:
        opened(built_bundle, "int8")
    assert caught.value.hint == "build it with --target ort-cpu --precision int8"


def test_precisions_and_threads_there_are_not(ort_bundle: Path) -> None:
    with pytest.raises(UsageError, match="unknown precision 'fp16'"):
        opened(ort_bundle, "fp16")
    with pytest.raises(UsageError, match="unknown provider 'tpu'") as error:
        andrea_export.load(ort_bundle, provider="tpu")
    assert error.value.hint == "providers: auto, cpu, cuda, tensorrt, tensorrt-rtx"
    for threads in (0, -1, 100_000):
        with pytest.raises(UsageError, match=rf"{threads} threads asked for, expected 1 to \d+"):
            andrea_export.load(ort_bundle, num_threads=threads)
    for odd in (1.5, "2", True):
        with pytest.raises(UsageError, match=rf"num_threads is {odd!r}, expected a whole number"):
            andrea_export.load(ort_bundle, num_threads=odd)
    with pytest.raises(UsageError, match="runs fp32 only"):
        andrea_export.load(ort_bundle, provider="cuda", precision="int8")


@pytest.mark.parametrize(
    ("file", "precision"),
    [
        ("ort-cpu-int8.onnx.data", "int8"),
        ("ort-cpu-int8.onnx", "int8"),
        ("model.onnx.data", "fp32"),
        ("ort-cpu-int4-prefill.onnx", "int4"),
    ],
)
def test_a_damaged_or_foreign_file_is_named(ort_bundle: Path, tmp_path: Path, file: str, precision: str) -> None:
    bundle = Path(shutil.copytree(ort_bundle, tmp_path / "bundle"))
    content = bytearray((bundle / file).read_bytes())
    content[len(content) // 2] ^= 1
    (bundle / file).write_bytes(content)
    with pytest.raises(BundleError, match=f"{file} has sha256"):
        opened(bundle, precision)
    (bundle / file).write_bytes(content[:100])
    with pytest.raises(BundleError, match=f"{file} has 100 bytes"):
        opened(bundle, precision)
    with pytest.raises(RunError, match="cannot load"):
        andrea_export.load(bundle, provider="cpu", precision=precision, verify=False)
    (bundle / file).unlink()
    with pytest.raises(BundleError, match=f"{file} is missing"):
        opened(bundle, precision)


def test_a_damaged_graph_is_never_parsed_and_damaged_weights_leave_no_session(
    ort_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are hashed while the session opens, so it may be open when they are found to be others."""
    bundle = Path(shutil.copytree(ort_bundle, tmp_path / "bundle"))
    weights = bundle / "ort-cpu-int8.onnx.data"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x55")
    opened_engines: list[Any] = []

    def remembered(*arguments: Any) -> Any:
        opened_engines.append(open_shared(*arguments))
        return opened_engines[-1]

    monkeypatch.setattr("andrea_export.runtime.open.open_shared", remembered)
    with pytest.raises(BundleError, match=r"ort-cpu-int8\.onnx\.data has sha256"):
        opened(bundle, "int8")
    assert len(opened_engines) == 1 and opened_engines[0]._decode is None

    def unreadable(path: Path) -> str:
        if path.suffix == ".data":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return sha256_of(path)

    def refused(*_: Any) -> Any:
        raise RunError("onnxruntime cannot load it")

    with monkeypatch.context() as patched:
        patched.setattr("andrea_export.bundle.contents.sha256_of", unreadable)
        with pytest.raises(BundleError, match=r"\.data cannot be read: Input/output error"):
            opened(bundle, "int8")
    assert len(opened_engines) == 2 and opened_engines[1]._decode is None
    with monkeypatch.context() as patched:
        patched.setattr("andrea_export.runtime.open.open_shared", refused)
        with pytest.raises(BundleError, match=r"ort-cpu-int8\.onnx\.data has sha256"):  # which is why
            opened(bundle, "int8")
    graph = bundle / "ort-cpu-int8.onnx"
    graph.write_bytes(graph.read_bytes()[:-1] + b"\x55")
    with pytest.raises(BundleError, match=r"ort-cpu-int8\.onnx has sha256"):
        opened(bundle, "int8")
    assert len(opened_engines) == 2


@pytest.mark.parametrize("file", ["manifest.json", "ort-cpu-int8.onnx", "ort-cpu-int8.onnx.data"])
@pytest.mark.parametrize("verify", [True, False])
def test_a_file_that_is_replaced_while_it_is_loaded(
    ort_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, verify: bool
) -> None:
    """What runs must be what was checked, and all of one bundle."""
    bundle = Path(shutil.copytree(ort_bundle, tmp_path / "bundle"))
    opened_engines: list[Any] = []

    def replaced(*arguments: Any) -> Any:
        opened_engines.append(open_shared(*arguments))
        shutil.copy(bundle / file, tmp_path / "new")
        (tmp_path / "new").replace(bundle / file)
        return opened_engines[-1]

    monkeypatch.setattr("andrea_export.runtime.open.open_shared", replaced)
    with pytest.raises(BundleError, match="was changed while it was loaded"):
        andrea_export.load(bundle, provider="cpu", precision="int8", verify=verify)
    assert opened_engines[0]._decode is None


def test_what_a_run_writes_to_outlives_the_model(ort_bundle: Path) -> None:
    """A model closed by another thread takes no memory from under a run."""
    with opened(ort_bundle) as model:
        engine = model.engine
        assert isinstance(engine, SharedCacheEngine)
        engine.start([PROMPT], 20)
        (binding,) = engine._bindings.values()
        pages = weakref.ref(engine._caches["0.key"].base)
    assert pages() is not None
    binding.session.run_with_iobinding(binding.io)
    del binding
    gc.collect()
    assert pages() is None


def test_a_forked_child_leaves_the_parents_session_alone(ort_bundle: Path) -> None:
    """Released there, it would wait for threads that only the parent has."""
    with opened(ort_bundle, "int4") as model:
        wanted = list(model.generate(PROMPT, max_new_tokens=4))
        child = os.fork()
        if child == 0:
            model.close()
            os._exit(0)
        deadline = time.monotonic() + 20
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.05)
        if ended == (0, 0):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        assert ended == (child, 0), "the child hangs"
        assert list(model.generate(PROMPT, max_new_tokens=4)) == wanted


def test_where_opening_takes_minutes_everything_is_checked_before(
    built_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Path(shutil.copytree(built_bundle, tmp_path / "bundle"))
    weights = bundle / "model.onnx.data"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x55")
    monkeypatch.setattr("andrea_export.runtime.open.open_growing", None)
    with pytest.raises(BundleError, match=r"model\.onnx\.data has sha256"):
        opened(bundle)


def test_a_bundle_that_failed_its_validation_is_not_run(ort_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(ort_bundle, tmp_path / "bundle"))
    seal(bundle, replace(open_bundle(bundle).manifest, verdict="fail"))
    with pytest.raises(ValidationError, match="failed its validation"):
        opened(bundle)


def test_a_moved_bundle_works_from_any_folder(
    ort_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ort_bundle, tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    for precision in PRECISIONS:
        with opened(Path("moved"), precision) as model:
            assert len(list(model.generate(PROMPT, max_new_tokens=2))) == 2


def test_auto_takes_the_cpu_where_there_is_nothing_else(ort_bundle: Path) -> None:
    with andrea_export.load(ort_bundle) as model:
        assert model.provider == "cpu" and model.name == "onnxruntime-cpu (ort-cpu-fp32)"


def test_auto_says_what_it_passed_over(ort_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from andrea_export.runtime import model as module
    from andrea_export.sessions.base import Availability

    monkeypatch.setattr(module, "provider_availability", lambda name: Availability(available=True))
    with andrea_export.load(ort_bundle) as model:
        assert model.provider == "cpu"
        (reason,) = model.passed_over
        assert reason.startswith("provider cuda: this onnxruntime")


@pytest.mark.parametrize("provider", ["cuda", "tensorrt", "tensorrt-rtx"])
def test_a_provider_that_is_not_here_is_an_error(ort_bundle: Path, provider: str) -> None:
    from andrea_export.sessions.onnxruntime import provider_availability

    if provider_availability(provider).available:
        pytest.skip(f"{provider} is installed here")
    with pytest.raises(BackendUnavailable, match=f"provider {provider}: ") as caught:
        andrea_export.load(ort_bundle, provider=provider)
    assert caught.value.hint is not None and "pip install" in caught.value.hint


def test_the_tensorrt_provider_wants_its_plugin(ort_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from andrea_export.sessions import onnxruntime as module
    from andrea_export.sessions.base import Availability

    monkeypatch.setattr(module, "provider_availability", lambda name: Availability(available=True))
    with pytest.raises(PluginError, match=r"there is no .*libandrea_plugins\.so"):
        open_growing(ort_bundle, "tensorrt", open_bundle(ort_bundle).config, 1, True)


def test_a_plugin_that_is_not_the_sealed_one_is_not_loaded(ort_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(ort_bundle, tmp_path / "bundle"))
    library = bundle / PLUGIN
    library.parent.mkdir()
    library.write_bytes(b"as it was sealed")
    with pytest.raises(BundleError, match=r"libandrea_plugins\.so is not in the manifest"):
        andrea_export.load(bundle, provider="tensorrt")
    manifest = open_bundle(bundle).manifest
    seal(bundle, replace(manifest, files={**manifest.files, PLUGIN: file_entry(library)}))
    library.write_bytes(b"as it is now....")
    with pytest.raises(BundleError, match=r"libandrea_plugins\.so has sha256"):
        andrea_export.load(bundle, provider="tensorrt")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_two_models_share_their_weights_and_nothing_else(
    ort_bundle: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    with opened(ort_bundle, precision) as alone:
        wanted = [list(alone.generate(prompt, max_new_tokens=12)) for prompt in (PROMPT, PROMPT[:3])]
    monkeypatch.setattr(runtime_open, "_open_sessions", weakref.WeakValueDictionary())
    made = []

    class Counting(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **named: Any) -> None:
            made.append(self)
            super().__init__(*arguments, **named)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Counting)
    first, second = opened(ort_bundle, precision), opened(ort_bundle, precision)
    assert len(made) == (2 if precision == "int4" else 1)
    turns = [model.generate(prompt, max_new_tokens=12) for model, prompt in ((first, PROMPT), (second, PROMPT[:3]))]
    found = list(zip(*turns, strict=True))
    assert [list(tokens) for tokens in zip(*found, strict=True)] == wanted
    first.close()
    assert list(second.generate(PROMPT, max_new_tokens=12)) == wanted[0]
    second.close()


def test_a_file_that_changed_is_opened_anew(ort_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(ort_bundle, tmp_path / "bundle"))
    with opened(bundle, "int8") as before:
        logits = before.prefill([PROMPT]).copy()
        data = bundle / "ort-cpu-int8.onnx.data"
        content = bytearray(data.read_bytes())
        content[: len(content) // 2] = bytes(len(content) // 2)
        (tmp_path / "new").write_bytes(content)
        (tmp_path / "new").replace(data)
        with andrea_export.load(bundle, provider="cpu", precision="int8", verify=False) as after:
            assert not np.allclose(after.prefill([PROMPT]), logits)
        assert np.array_equal(before.prefill([PROMPT]), logits)


@pytest.mark.parametrize(("precision", "wanted"), [("int8", None), ("int4", "1")])
def test_sessions_that_take_turns_do_not_spin(
    ort_bundle: Path, monkeypatch: pytest.MonkeyPatch, precision: str, wanted: str | None
) -> None:
    """Waiting threads of the session that is not running would hold the cores; one session alone may wait so."""
    monkeypatch.setattr(runtime_open, "_open_sessions", weakref.WeakValueDictionary())
    found = []

    class Recording(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, source: str, options: onnxruntime.SessionOptions, **others: Any) -> None:
            try:
                found.append(options.get_session_config_entry("session.force_spinning_stop"))
            except RuntimeError:  # it is not set
                found.append(None)
            super().__init__(source, options, **others)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Recording)
    andrea_export.load(ort_bundle, provider="cpu", precision=precision).close()
    assert found == [wanted] * (1 if wanted is None else 2)


def test_out_of_memory_is_one_line() -> None:
    with pytest.raises(BackendUnavailable, match=r"^engine: out of memory$"):
        raise_run_error("engine", RuntimeError("[ONNXRuntimeError] : 6 : std::bad_alloc"))
    with pytest.raises(RunError, match="engine: something else"):
        raise_run_error("engine", RuntimeError("something\nelse"))


def test_a_batch_that_does_not_fit_in_memory_is_one_line_and_the_model_lives(tmp_path: Path, ort_bundle: Path) -> None:
    script = tmp_path / "limited.py"
    script.write_text(
        "import resource, sys\n"
        "import andrea_export\n"
        "from andrea_export.core.errors import BackendUnavailable\n"
        "with andrea_export.load(sys.argv[1], provider='cpu', num_threads=1) as model:\n"
        "    model.prefill([(1, 2)])\n"
        "    used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))\n"
        "    try:\n"
        "        next(model.generate_batch([(1,)] * 4000, max_new_tokens=1023))\n"
        "    except BackendUnavailable as error:\n"
        "        print(error)\n"
        "    print(next(model.generate((1, 2), max_new_tokens=1)))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, script, ort_bundle], env=environment, capture_output=True, text=True, check=True
    )
    first, second = done.stdout.splitlines()
    assert first == "onnxruntime-cpu (ort-cpu-fp32): out of memory"
    assert second.isdigit()


class Node:
    """What onnxruntime says of one node."""

    def __init__(self, name: str, op_type: str) -> None:
        self.name, self.op_type = name, op_type


class Subgraph:
    """What onnxruntime says of one part of a graph."""

    def __init__(self, ep_name: str, *nodes: Node) -> None:
        self.ep_name, self._nodes = ep_name, nodes

    def get_nodes(self) -> tuple[Node, ...]:
        return self._nodes


def test_onnxruntimes_own_record_of_a_graph_on_the_cpu(tiny_onnx: Path) -> None:
    """Here every node is on the CPU: as it should be where that was asked for, and elsewhere where CUDA was."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = onnxruntime.InferenceSession(str(tiny_onnx), options, providers=["CPUExecutionProvider"])
    record = session.get_provider_graph_assignment_info()
    check_assignment(PROVIDERS["cpu"], record)
    with pytest.raises(BackendUnavailable, match=r"provider cuda: \d+ nodes are not on it: ") as error:
        check_assignment(PROVIDERS["cuda"], record)
    named = str(error.value)
    assert "on CPUExecutionProvider" in named and re.search(r" and \d+ more$", named.splitlines()[0])


def test_a_node_that_landed_elsewhere_is_named() -> None:
    here = Subgraph("CUDAExecutionProvider", Node("blocks.0.mlp.fc", "MatMul"))
    check_assignment(PROVIDERS["cuda"], [here])
    elsewhere = Subgraph("CPUExecutionProvider", Node("blocks.0.mlp.gelu", "Gelu"))
    with pytest.raises(
        BackendUnavailable, match=r"1 nodes are not on it: blocks\.0\.mlp\.gelu \(Gelu\) on CPU"
    ) as error:
        check_assignment(PROVIDERS["cuda"], [here, elsewhere])
    assert error.value.hint == "allow it with --allow-cpu-nodes"
