"""Text with a draft is the text without: greedy, drawn, near ties, at its end, left, closed, and several at once."""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import andrea_export
from andrea_export.core.errors import BundleError, UsageError
from andrea_export.graph.canonical.export import export_canonical
from andrea_export.runtime import Model, Sampling
from andrea_export.runtime.draft import Draft
from andrea_export.runtime.open import open_shared
from andrea_export.runtime.pace import Pace
from andrea_export.runtime.sampling import Sampler
from andrea_export.runtime.shared_cache import SharedCacheGeneration
from andrea_export.targets.ort_cpu.derive import derive_ort_cpu
from andrea_export.targets.ort_cpu.files import files_of
from andrea_export.targets.ort_cpu.options import OrtCpu
from andrea_export.weights.load import LoadedModel, load_model, save_checkpoint
from support.generating import PROMPT, opened
from support.scripted_decoder import Clock, Script, ScriptedDecoder

SAMPLINGS = (
    Sampling(),
    Sampling(temperature=1.0, seed=3),
    Sampling(temperature=0.7, top_k=40, seed=4),
    Sampling(temperature=1.3, top_p=0.9, seed=5),
    Sampling(temperature=1.0, top_k=20, top_p=0.8, seed=6),
    Sampling(temperature=5e-324),
)


@pytest.fixture
def proposing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts propose whatever it costs, and never as many as the time before."""
    numbers = itertools.cycle((4, 1, 15, 0, 7, 2))
    monkeypatch.setattr(Pace, "num_to_propose", lambda _: next(numbers))


def drafted(bundle: Path, draft: str = "int4") -> Model:
    return andrea_export.load(bundle, provider="cpu", draft=draft)


def said(model: Model, number: int, sampling: Sampling | None = None, prompt: tuple[int, ...] = PROMPT) -> list[int]:
    return list(model.generate(prompt, max_new_tokens=number, sampling=sampling))


@pytest.mark.parametrize("draft", ["int8", "int4"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.usefixtures("proposing")
def test_the_text_is_the_text_without(ort_bundle: Path, draft: str, sampling: Sampling) -> None:
    with opened(ort_bundle) as plain, drafted(ort_bundle, draft) as model:
        for prompt in (PROMPT, PROMPT[:1], tuple(range(200))):
            assert said(model, 150, sampling, prompt) == said(plain, 150, sampling, prompt)
        assert model.draft is not None and model.draft.record is not None
        record = model.draft.record
        assert record.num_proposed >= record.num_accepted > 0 and record.off is None
        assert record.num_verified + record.num_accepted + record.num_plain >= 149
        assert model.name == f"onnxruntime-cpu (ort-cpu-fp32), drafted in {draft}"


@pytest.mark.parametrize("sampling", SAMPLINGS[:3])
def test_the_text_is_the_text_without_whatever_the_times_are(ort_bundle: Path, sampling: Sampling) -> None:
    with opened(ort_bundle) as plain, drafted(ort_bundle) as model:
        assert said(model, 400, sampling) == said(plain, 400, sampling)


@pytest.mark.usefixtures("proposing")
def test_a_stop_token_ends_the_text_where_it_would(ort_bundle: Path) -> None:
    sampling = Sampling(temperature=1.0, seed=1)
    with opened(ort_bundle) as plain, drafted(ort_bundle) as model:
        wanted = said(plain, 60, sampling)
        for stop in dict.fromkeys(wanted):
            stopped = Sampling(temperature=1.0, seed=1, stop=(stop,))
            assert said(model, 60, stopped) == wanted[: wanted.index(stop)]


@pytest.mark.usefixtures("proposing")
@pytest.mark.parametrize("number", [1, 2, 3, 9, 24])
def test_a_context_can_be_filled(ort_bundle: Path, number: int) -> None:
    prompt = tuple(index % 321 for index in range(1024 - number))
    with opened(ort_bundle) as plain, drafted(ort_bundle) as model:
        assert said(model, number, prompt=prompt) == said(plain, number, prompt=prompt)
        with pytest.raises(UsageError, match="1025 positions"):
            said(model, number + 1, prompt=prompt)


@pytest.mark.usefixtures("proposing")
def test_a_batch_says_what_it_says_without(ort_bundle: Path) -> None:
    """Its rows share their steps; one alone is drafted."""
    sampling = Sampling(temperature=1.0, seed=2)
    with opened(ort_bundle) as plain, drafted(ort_bundle) as model:
        for prompts in ([PROMPT], [PROMPT, PROMPT[:2], PROMPT[::-1]]):
            wanted = list(plain.generate_batch(prompts, max_new_tokens=20, sampling=sampling))
            assert list(model.generate_batch(prompts, max_new_tokens=20, sampling=sampling)) == wanted
        assert np.array_equal(model.prefill([PROMPT]), plain.prefill([PROMPT]))


@pytest.mark.usefixtures("proposing")
def test_texts_at_once_and_from_threads(ort_bundle: Path) -> None:
    with opened(ort_bundle) as plain, drafted(ort_bundle) as model:
        wanted = {length: said(plain, 40, prompt=PROMPT[:length]) for length in range(1, 9)}
        texts = [model.generate(PROMPT[:length], max_new_tokens=40) for length in wanted]
        assert [list(row) for row in zip(*zip(*texts, strict=True), strict=True)] == list(wanted.values())
        with ThreadPoolExecutor(4) as pool:
            found = pool.map(lambda length: said(model, 40, prompt=PROMPT[:length]), [*wanted] * 3)
            assert list(found) == [*wanted.values()] * 3


@pytest.mark.usefixtures("proposing")
def test_an_iterator_that_is_left_frees_both_caches(ort_bundle: Path) -> None:
    with opened(ort_bundle) as plain, drafted(ort_bundle) as model:
        assert model.draft is not None
        left = model.generate(PROMPT, max_new_tokens=30)
        for _ in range(8):
            next(left)
        decoders = (model.decoder, model.draft.proposing)
        assert all(len(decoder._in_progress) == 1 for decoder in decoders)
        del left
        assert not any(decoder._in_progress for decoder in decoders)
        assert said(model, 30) == said(plain, 30)


@pytest.mark.usefixtures("proposing")
def test_a_text_says_when_its_model_was_closed(ort_bundle: Path) -> None:
    """At once, though some of its next tokens are known."""
    for number in range(1, 9):
        with drafted(ort_bundle) as model:
            text = model.generate(PROMPT, max_new_tokens=30)
            for _ in range(number):
                next(text)
        with pytest.raises(UsageError, match="the model is closed"):
            next(text)


def test_going_back_copies_nothing(ort_bundle: Path) -> None:
    with opened(ort_bundle) as model, closing(model.decoder.begin([PROMPT], 40)) as generation:
        assert isinstance(generation, SharedCacheGeneration)
        logits_SV = generation.append([1, 2, 3]).copy()
        assert logits_SV.shape == (3, model.config.vocab_size)
        blocks = generation.cache.blocks
        before = blocks.copy()
        generation.rewind(len(PROMPT))
        assert generation.cache.blocks is blocks and np.array_equal(blocks, before)
        assert np.array_equal(generation.append([1, 2, 3]), logits_SV)
        generation.rewind(len(PROMPT) + 1)
        assert np.abs(generation.step([2])[0] - logits_SV[1]).max() < 1e-4


@pytest.fixture(scope="module")
def twins(tiny: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of which every second token is the one before it but for the last bits: nothing but near ties."""
    folder = tmp_path_factory.mktemp("twins")
    model = deepcopy(tiny.model)
    with torch.no_grad():
        embedding = model.token_embed.weight
        noise = torch.randn(embedding[0:320:2].shape, generator=torch.Generator().manual_seed(0))
        embedding[1:321:2] = embedding[0:320:2] * (1 + 1e-7 * noise)
    save_checkpoint(model, folder / "twins.safetensors")
    exported = export_canonical(load_model(preset=None, checkpoint=folder / "twins.safetensors", seed=0), folder)
    for precision in ("fp32", "int4"):
        derive_ort_cpu(exported, tiny.config, precision=precision, options=OrtCpu(), folder=folder)
    return folder


@pytest.mark.usefixtures("proposing")
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=5e-324)])
def test_where_rounding_would_decide_single_steps_do(
    tiny: LoadedModel, twins: Path, cpu_library: Path, sampling: Sampling
) -> None:
    """A run of several tokens adds up in another order: without ``off_by`` it takes the other twin."""
    fp32, int4 = (files_of(precision) for precision in ("fp32", "int4"))
    with (
        closing(open_shared(twins, fp32, tiny.config, 2, library=None)) as verifying,
        closing(open_shared(twins, int4, tiny.config, 2, library=cpu_library)) as proposing,
    ):
        plain = []
        with closing(verifying.begin([PROMPT], 300)) as generation:
            while len(plain) < 200:
                plain.append(Sampler(sampling).pick(generation.logits_BV[0], len(plain)))
                generation.step(plain[-1:])

        def with_draft(off_by: float) -> tuple[list[int], Draft]:
            draft = Draft(precision="int4", proposing=proposing, verifying=verifying, off_by=off_by)
            return list(draft.tokens(PROMPT, 200, Sampler(sampling))), draft

        found, draft = with_draft(4e-5)
        assert found == plain
        assert draft.record is not None and draft.record.num_replayed > 50
        assert with_draft(0.0)[0] != plain


def test_the_bound_is_the_proofs(ort_bundle: Path) -> None:
    """Both ways are within the budget of the truth, so within twice the budget of each other; and by far, in fact."""
    rows = json.loads((ort_bundle / "report.json").read_text())["layers"]
    (row,) = [row for row in rows if (row["candidate"], row["name"]) == ("ort-cpu-fp32", "logits")]
    with drafted(ort_bundle) as model:
        assert model.draft is not None and model.draft.off_by == 2 * row["budget"]["max_abs"]
        tokens = said(model, 200)
        with closing(model.decoder.begin([PROMPT], 300)) as generation:
            one_by_one = [generation.step([token])[0].copy() for token in tokens]
        with closing(model.decoder.begin([PROMPT], 300)) as generation:
            assert isinstance(generation, SharedCacheGeneration)
            at_once = [row.copy() for begin in range(0, 200, 8) for row in generation.append(tokens[begin : begin + 8])]
    apart = np.abs(np.array(one_by_one) - np.array(at_once)).max()
    assert 0 < apart < model.draft.off_by


# Tokens 0 to 3. The draft agrees with the model more or less, and after a 2 not at all.
VERIFYING = np.array([[0.1, 1.5, 0.4, -1.0], [0.9, 0.2, 1.0, 0.3], [-0.5, 0.0, 0.7, 1.2], [1.0, -1.0, 0.0, 0.5]])
PROPOSING = VERIFYING + np.array([[0.3, -0.2, 0, 0.1], [0, 0.2, -0.1, 0], [3.0, 0, 0, -3.0], [0, 0, 0, 0]])


def after(logits: np.ndarray) -> Script:
    return lambda text: np.asarray(logits[text[-1]], np.float32)


def scripted(proposing: ScriptedDecoder, verifying: ScriptedDecoder) -> Draft:
    return Draft(precision="int4", proposing=proposing, verifying=verifying, off_by=1e-6, clock=verifying.clock)


def probabilities(logits_V: np.ndarray, sampling: Sampling) -> np.ndarray:
    """The softmax over what is kept, written down anew: shares sorted, cut off, made one."""
    share = np.exp(logits_V / (sampling.temperature or 1.0))
    order = np.argsort(-share)
    order = order[: sampling.top_k or len(order)]
    kept: list[int] = []
    while len(kept) < len(order) and share[kept].sum() < (sampling.top_p or 1.0) * share[order].sum():
        kept.append(int(order[len(kept)]))
    found = np.zeros(len(share))
    found[kept] = share[kept] / share[kept].sum()
    return found


@pytest.mark.usefixtures("proposing")
@pytest.mark.parametrize(
    "sampling",
    [Sampling(temperature=1.0), Sampling(temperature=0.6, top_k=3), Sampling(temperature=1.5, top_k=3, top_p=0.8)],
)
def test_texts_have_the_distribution_they_had(sampling: Sampling) -> None:
    """Every text of three tokens, and how often it should come; chi-square over 4,000 seeds."""
    expected = {}
    for text in itertools.product(range(4), repeat=3):
        by_token = [probabilities(VERIFYING[last], sampling)[new] for last, new in itertools.pairwise((0, *text))]
        expected[text] = 4000 * float(np.prod(by_token))
    draft = scripted(ScriptedDecoder(after(PROPOSING)), ScriptedDecoder(after(VERIFYING)))
    found = Counter(tuple(draft.tokens([0], 3, Sampler(replace(sampling, seed=seed)))) for seed in range(4000))
    assert {text for text in found if expected[text] == 0} == set()
    likely = [text for text, number in expected.items() if number > 5]
    rest = (sum(found[text] for text in expected if text not in likely), 4000 - sum(expected[text] for text in likely))
    pairs = [*((found[text], expected[text]) for text in likely), *([rest] if rest[1] > 0 else [])]
    chi_square = sum((number - wanted) ** 2 / wanted for number, wanted in pairs)
    # Its mean is the number of degrees of freedom, its variance twice that; four standard deviations above. The seeds
    # are fixed, so it cannot fail by chance.
    freedom = len(pairs) - 1
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom)


@pytest.mark.usefixtures("proposing")
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_poor_draft_changes_nothing(sampling: Sampling) -> None:
    for proposed in (PROPOSING, -VERIFYING, np.zeros((4, 4))):
        draft = scripted(ScriptedDecoder(after(proposed)), ScriptedDecoder(after(VERIFYING)))
        for seed in range(20):
            sampler, text = Sampler(replace(sampling, seed=seed)), [1]
            for place in range(30):
                text.append(sampler.pick(after(VERIFYING)(tuple(text)), place))
            assert list(draft.tokens([1], 30, sampler)) == text[1:]


def test_one_run_verifies_what_is_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no more than what is missing is fed to either."""
    monkeypatch.setattr(Pace, "num_to_propose", lambda _: 4)
    proposing, verifying = ScriptedDecoder(after(VERIFYING)), ScriptedDecoder(after(VERIFYING))
    draft = scripted(proposing, verifying)
    assert len(list(draft.tokens([0, 1, 2], 16, Sampler(Sampling())))) == 16
    assert verifying.runs == [3, 5, 5, 5]
    # The prompt and the first token; then each time the last one that was accepted, and the one after it.
    assert proposing.runs == [4, 1, 1, 1, 2, 1, 1, 1, 2, 1, 1, 1]
    assert draft.record is not None
    assert (draft.record.num_proposed, draft.record.num_accepted, draft.record.num_verified) == (12, 12, 3)


@pytest.mark.parametrize(("run_s", "pays"), [(0.2, True), (0.9, False), (3.0, False)])
def test_a_draft_that_does_not_pay_is_switched_off_by_its_own_measurement(run_s: float, pays: bool) -> None:
    """Plain steps take a second; a draft that takes nearly as long is off after a few runs. The text is the same."""
    clock = Clock()
    proposing = ScriptedDecoder(after(PROPOSING), clock, run_s=run_s)
    verifying = ScriptedDecoder(after(VERIFYING), clock, run_s=0.9, token_s=0.1)
    draft = scripted(proposing, verifying)
    sampling = Sampling(temperature=1.0, seed=9)
    text = list(draft.tokens([0], 600, Sampler(sampling)))
    patient = scripted(ScriptedDecoder(after(PROPOSING)), ScriptedDecoder(after(VERIFYING)))
    assert list(patient.tokens([0], 600, Sampler(sampling))) == text
    assert draft.record is not None
    assert (draft.record.off is None) is pays
    assert clock.now < (0.8 if pays else 1.15) * 600
    assert draft.record.num_plain < 60 if pays else draft.record.num_plain > 500


def test_a_short_text_after_a_long_prompt_is_not_drafted() -> None:
    clock = Clock()
    proposing = ScriptedDecoder(after(VERIFYING), clock)
    draft = scripted(proposing, ScriptedDecoder(after(VERIFYING), clock, run_s=0.9, token_s=0.1))
    assert len(list(draft.tokens([0] * 900, 16, Sampler(Sampling())))) == 16
    assert proposing.runs == [] and draft.record is not None
    assert draft.record.off == "the text is too short to be worth reading its prompt twice"


@pytest.mark.parametrize(
    ("options", "text", "hint"),
    [
        ({"draft": "fp32"}, "fp32 is no cheaper than fp32", "from dear to cheap: fp32, int8, int4"),
        ({"precision": "int8", "draft": "fp32"}, "fp32 is no cheaper than int8", "from dear to cheap"),
        ({"precision": "int4", "draft": "int8"}, "int8 is no cheaper than int4", "from dear to cheap"),
        ({"draft": "int3"}, "unknown precision 'int3'", "precisions: fp32, int8, int4"),
        ({"draft": "int4", "provider": "cuda"}, "provider cuda takes no draft", "use --provider cpu"),
    ],
)
def test_what_is_not_a_draft(ort_bundle: Path, options: dict[str, str], text: str, hint: str) -> None:
    with pytest.raises(UsageError, match=text) as refused:
        andrea_export.load(ort_bundle, **options)  # type: ignore[arg-type]
    assert hint in str(refused.value.hint)


def test_a_bundle_without_the_graphs(ort_bundle: Path, built_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no fp32 and no int4 graph for the CPU, which a draft needs") as refused:
        andrea_export.load(built_bundle, draft="int4")
    assert refused.value.hint == "build it with --target ort-cpu --precision fp32 --precision int4"
    bundle = Path(shutil.copytree(ort_bundle, tmp_path / "bundle"))
    manifest = json.loads((bundle / "manifest.json").read_text())
    (bundle / "manifest.json").write_text(json.dumps({**manifest, "ort_cpu": ["int4"]}))
    with pytest.raises(UsageError, match="has no fp32 graph for the CPU"):
        andrea_export.load(bundle, draft="int4")


def test_auto_with_a_draft_is_the_cpu(ort_bundle: Path) -> None:
    with andrea_export.load(ort_bundle, draft="int4") as model:
        assert (model.provider, model.precision) == ("cpu", "fp32")


@pytest.mark.parametrize("content", ["{}", "[]", '{"layers": []}', "{"])
def test_a_report_that_does_not_say_the_bound(ort_bundle: Path, tmp_path: Path, content: str) -> None:
    bundle = Path(shutil.copytree(ort_bundle, tmp_path / "bundle"))
    (bundle / "report.json").write_text(content)
    with pytest.raises(BundleError, match="has no budget for logits of ort-cpu-fp32"):
        andrea_export.load(bundle, provider="cpu", draft="int4", verify=False)
    with pytest.raises(BundleError, match=r"report\.json has"):
        andrea_export.load(bundle, provider="cpu", draft="int4")


def test_a_damaged_draft_leaves_nothing_open(ort_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(ort_bundle, tmp_path / "bundle"))
    weights = bundle / "ort-cpu-int4.onnx.data"
    weights.write_bytes(weights.read_bytes()[::-1])
    with pytest.raises(BundleError, match=r"ort-cpu-int4\.onnx\.data has sha256"):
        andrea_export.load(bundle, provider="cpu", draft="int4")
