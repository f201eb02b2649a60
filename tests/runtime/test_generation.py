"""What a model says: torch's tokens, whatever the chunks; draws that repeat; stops; texts that are left or at once."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from andrea_export.core.errors import (
    UsageError,
)
from andrea_export.runtime import Sampling
from andrea_export.runtime.cores import num_usable_cores
from andrea_export.runtime.open import open_shared
from andrea_export.targets.ort_cpu.derive import derive_ort_cpu
from andrea_export.targets.ort_cpu.files import files_of
from andrea_export.targets.ort_cpu.options import OrtCpu
from andrea_export.weights.load import LoadedModel
from support.generating import PRECISIONS, PROMPT, opened, torch_greedy


def test_fp32_says_what_torch_says_for_200_tokens(tiny: LoadedModel, ort_bundle: Path) -> None:
    wanted = torch_greedy(tiny, PROMPT, 200)
    assert len(set(wanted)) > 3, "a model that says one token for ever compares nothing"
    with opened(ort_bundle) as model:
        assert model.graph == "ort-cpu-fp32.onnx"
        assert list(model.generate(PROMPT, max_new_tokens=200)) == wanted
        assert list(model.generate(PROMPT, max_new_tokens=200)) == wanted, "greedy is deterministic"


@pytest.mark.full
def test_fp32_of_120m_says_what_torch_says_for_200_tokens(
    andrea_120m: LoadedModel, andrea_120m_onnx: Path, tmp_path: Path
) -> None:
    config = andrea_120m.config
    for name in ("model.onnx", "model.onnx.data"):
        shutil.copy(andrea_120m_onnx.with_name(name), tmp_path)
    derive_ort_cpu(tmp_path / "model.onnx", config, precision="fp32", options=OrtCpu(), folder=tmp_path)
    with closing(open_shared(tmp_path, files_of("fp32"), config, num_usable_cores(), library=None)) as decoder:
        generation = decoder.begin([PROMPT], len(PROMPT) + 200)
        said = [int(generation.logits_BV[0].argmax())]
        while len(said) < 200:
            said.append(int(generation.step(said[-1:])[0].argmax()))
    with torch.inference_mode():  # each token is torch's first choice after those before it: greedy, in one run
        logits, _ = andrea_120m.model(torch.tensor([[*PROMPT, *said[:-1]]]))
    assert said == logits[0, len(PROMPT) - 1 :].argmax(dim=-1).tolist()


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
        model.decoder.chunk = 1024  # type: ignore[attr-defined]
        whole = model.prefill([prompt]).copy()
    # int8 rounds a chunk's activations on the chunk's own range, so its logits move with the chunks, by what int8
    # costs at all; fp32 and the last token of int4 do not round by chunk, int4's cache (filled in int8) does.
    allowed = 1e-4 if precision == "fp32" else 0.1 * np.abs(whole).max()
    assert np.abs(chunked - whole).max() <= allowed


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


def test_next_to_no_temperature_is_greedy(ort_bundle: Path) -> None:
    with opened(ort_bundle) as model:
        cold = Sampling(temperature=5e-324)
        assert list(model.generate(PROMPT, max_new_tokens=4, sampling=cold)) == list(
            model.generate(PROMPT, max_new_tokens=4)
        )


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


@pytest.mark.parametrize("precision", [*PRECISIONS, "canonical"])
def test_texts_at_once_say_what_they_say_alone(ort_bundle: Path, built_bundle: Path, precision: str) -> None:
    """However they come and go: of one shape or another, in the middle of a text or at its end."""
    sampling = Sampling(temperature=1.0, seed=5)
    with opened(built_bundle) if precision == "canonical" else opened(ort_bundle, precision) as model:
        wanted = list(model.generate(PROMPT, max_new_tokens=6))
        other = list(model.generate(PROMPT[:2], max_new_tokens=150, sampling=sampling))
        rows = list(model.generate_batch([PROMPT, PROMPT[:3]], max_new_tokens=3))
        logits = model.prefill([PROMPT[::-1]])
        text = model.generate(PROMPT, max_new_tokens=6)
        beside = model.generate(PROMPT[:2], max_new_tokens=150, sampling=sampling)
        found, found_beside = [next(text)], [next(beside)]
        assert list(model.generate_batch([PROMPT, PROMPT[:3]], max_new_tokens=3)) == rows
        found.append(next(text))
        assert np.array_equal(model.prefill([PROMPT[::-1]]), logits)
        assert list(model.generate(PROMPT, max_new_tokens=6)) == wanted
        assert found + list(text) == wanted
        assert found_beside + list(beside) == other


@pytest.mark.parametrize("precision", [*PRECISIONS, "canonical"])
def test_threads_may_share_a_model(ort_bundle: Path, built_bundle: Path, precision: str) -> None:
    lengths = (8, 3, 8, 5, 1, 8, 2, 8)
    with opened(built_bundle) if precision == "canonical" else opened(ort_bundle, precision) as model:

        def said(length: int) -> tuple[list[int], bytes]:
            prompt = PROMPT[:length]
            return list(model.generate(prompt, max_new_tokens=24)), model.prefill([prompt, PROMPT]).tobytes()

        wanted = [said(length) for length in lengths]
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(said, lengths * 3)) == wanted * 3


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_text_says_when_its_model_was_closed(ort_bundle: Path, precision: str) -> None:
    with opened(ort_bundle, precision) as model:
        text = model.generate(PROMPT, max_new_tokens=6)
        not_begun = model.generate(PROMPT, max_new_tokens=6)
        next(text)
    for left in (text, not_begun):
        with pytest.raises(UsageError, match="the model is closed"):
            next(left)


def test_prompts_of_any_integers(ort_bundle: Path) -> None:
    with opened(ort_bundle) as model:
        wanted = list(model.generate(PROMPT, max_new_tokens=4))
        assert list(model.generate(PROMPT, max_new_tokens=np.int64(4))) == wanted
        for prompt in (np.array(PROMPT), np.array(PROMPT, np.int32), torch.tensor(PROMPT), list(PROMPT)):
            assert list(model.generate(prompt, max_new_tokens=4)) == wanted
        whole = np.arange(model.config.n_ctx) % 7
        assert np.isfinite(model.prefill([whole])).all()
