"""A generation's memory: bound once, taken over, never read before it is written, gone when nobody uses it."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from andrea_export.core.errors import BackendUnavailable, RunError, UsageError
from andrea_export.runtime import Model, bound_cache
from andrea_export.runtime.decoder import Generation, raise_run_error
from andrea_export.runtime.shared_cache import SharedCacheGeneration
from support.generating import PRECISIONS, PROMPT, opened


def begun(model: Model, prompts: list[tuple[int, ...]], capacity: int) -> SharedCacheGeneration:
    generation = model.decoder.begin(prompts, capacity)
    assert isinstance(generation, SharedCacheGeneration)
    return generation


def said(generation: Generation, steps: list[list[int]]) -> list[np.ndarray]:
    """The logits after the prompts, and after each step."""
    return [generation.logits_BV.copy(), *(generation.step(tokens).copy() for tokens in steps)]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_an_earlier_text_left_in_the_cache_is_never_read(ort_bundle: Path, precision: str) -> None:
    """The buffers of a text of the same shape are used again: full of NaN, they give the very same logits."""
    prompts, steps = [PROMPT, PROMPT[:3]], [[1, 2], [3, 4]]
    with opened(ort_bundle, precision) as model:
        with closing(begun(model, prompts, 40)) as first:
            wanted, cache = said(first, steps), first.cache
        cache.blocks[:] = np.nan
        with closing(begun(model, prompts, 40)) as second:
            assert second.cache is cache
            assert all(np.array_equal(a, b) for a, b in zip(said(second, steps), wanted, strict=True))


def test_steps_allocate_no_buffers(ort_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(ort_bundle) as model, closing(begun(model, [PROMPT], 40)) as generation:
        generation.step([7])  # the first one binds

        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("a step binds or allocates")

        for name in ("zeros", "empty", "ones", "asarray", "array"):
            monkeypatch.setattr(np, name, refuse)
        monkeypatch.setattr(generation.cache, "bind", refuse)
        assert all(generation.step([token]) is generation.logits_BV for token in (1, 2, 3))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_interrupted_binding_is_not_kept(ort_bundle: Path, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """Ctrl-C may come anywhere; the next text of that shape must not find half of it."""
    with opened(ort_bundle, precision) as model:
        wanted = list(model.generate(PROMPT, max_new_tokens=4))
    bind_output = bound_cache._bind_output
    for stop_at in (1, 3, 5, 6, 8, 9):
        calls = itertools.count(1)

        def interrupted(*arguments: Any, calls: Iterator[int] = calls, stop_at: int = stop_at) -> None:
            if next(calls) == stop_at:
                raise KeyboardInterrupt
            bind_output(*arguments)

        with opened(ort_bundle, precision) as model:
            with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
                patched.setattr(bound_cache, "_bind_output", interrupted)
                list(model.generate(PROMPT, max_new_tokens=4))
            assert next(calls) > stop_at, "the interruption never came"
            assert list(model.generate(PROMPT, max_new_tokens=4)) == wanted


def test_a_generation_that_was_closed_says_so(ort_bundle: Path, built_bundle: Path) -> None:
    for bundle in (ort_bundle, built_bundle):
        with opened(bundle) as model:
            ended, left = (model.decoder.begin([PROMPT], 20) for _ in range(2))
            ended.close()
            ended.close()
            with pytest.raises(UsageError, match="the generation is closed"):
                ended.step([1])
            left.step([1])
        with pytest.raises(UsageError, match="the model is closed"):
            left.step([1])


def test_texts_of_about_one_length_have_one_shape(ort_bundle: Path) -> None:
    with opened(ort_bundle) as model:

        def capacity(length: int, number: int) -> int:
            with closing(begun(model, [(1,) * length], number)) as generation:
                return generation.cache.shape[2]

        assert {capacity(length, length + 20) for length in (1, 60, 100)} == {128}
        assert capacity(8, model.config.n_ctx) == model.config.n_ctx


@pytest.mark.parametrize("precision", PRECISIONS)
def test_texts_of_one_shape_are_bound_once(ort_bundle: Path, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """And say what they say in a model of their own, however their prompts' lengths come and go."""
    monkeypatch.setattr("andrea_export.runtime.bound_cache._MOST_BINDINGS", 4)
    prompts = [PROMPT[:length] for length in (3, 8, 2, 8, 1, 5, 6, 7, 3)]

    def greedy(model: Model, prompt: tuple[int, ...]) -> list[int]:
        with closing(begun(model, [prompt], 12)) as generation:
            first = int(generation.logits_BV[0].argmax())
            return [first, int(generation.step([first])[0].argmax())]

    with opened(ort_bundle, precision) as model:
        found = [greedy(model, prompt) for prompt in prompts]
        first = greedy(model, PROMPT)
        monkeypatch.setattr("andrea_export.runtime.bound_cache._bind_output", None)
        assert greedy(model, PROMPT) == first
    monkeypatch.undo()
    alone = []
    for prompt in prompts:
        with opened(ort_bundle, precision) as model:
            alone.append(greedy(model, prompt))
    assert found == alone


def test_what_a_run_writes_to_outlives_the_model(ort_bundle: Path) -> None:
    """A model closed by another thread takes no memory from under a run."""
    with opened(ort_bundle) as model:
        generation = begun(model, [PROMPT], 20)
        (binding,) = generation.cache._bindings.values()
        pages = weakref.ref(generation.cache.blocks.base)
    assert pages() is not None
    binding.session.run_with_iobinding(binding.io)
    del binding
    gc.collect()
    assert pages() is None


def test_out_of_memory_is_one_line() -> None:
    with pytest.raises(BackendUnavailable, match=r"^decoder: out of memory$"):
        raise_run_error("decoder", RuntimeError("[ONNXRuntimeError] : 6 : std::bad_alloc"))
    with pytest.raises(RunError, match="decoder: something else"):
        raise_run_error("decoder", RuntimeError("something\nelse"))


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


def test_an_iterator_that_is_left_frees_its_cache(ort_bundle: Path) -> None:
    """For the next text of its shape; what a text of another shape does not need is given back to the system."""
    with opened(ort_bundle) as model:
        left = model.generate(PROMPT, max_new_tokens=9)
        next(left)
        (generation,) = (reference() for reference in model.decoder._in_progress.valuerefs())
        assert isinstance(generation, SharedCacheGeneration)
        cache = weakref.ref(generation.cache)
        del left, generation
        assert not model.decoder._in_progress
        with closing(begun(model, [PROMPT], 20)) as same_shape:
            assert same_shape.cache is cache()
        with closing(begun(model, [PROMPT] * 2, 20)):
            assert cache() is None


def test_texts_one_after_the_other_hold_one_cache(ort_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts at once have one each; of those, one is kept for the next text."""
    made: list[weakref.ref[np.ndarray]] = []
    zero_pages = bound_cache.zero_pages

    def remembered(*arguments: Any) -> np.ndarray:
        assert not any(pages() is not None for pages in made[:most]), "two sets at once"
        array = zero_pages(*arguments)
        made.append(weakref.ref(array))
        return array

    monkeypatch.setattr(bound_cache, "zero_pages", remembered)
    with opened(ort_bundle) as model:
        most = 9  # every one before is gone when another one comes
        for prompt in (PROMPT, PROMPT[:2], PROMPT[::-1]):
            list(model.generate(prompt, max_new_tokens=3))
        assert len(made) == 1
        for number in (2, 3):
            list(model.generate_batch([PROMPT] * number, max_new_tokens=3))
        assert len(made) == 3
        most = 0
        at_once = [model.generate(PROMPT, max_new_tokens=3) for _ in range(3)]
        assert len(list(zip(*at_once, strict=True))) == 3
        assert len(made) == 6
        assert sum(pages() is not None for pages in made) == 1
