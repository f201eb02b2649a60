"""What errors do to predictions: figures against numpy, budgets against their proofs, each case against a fault."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from andrea_export.compare.inputs import BUILT_IN_TEXT, Inputs, built_in_tokens, cases_from_tokens
from andrea_export.compare.language.figures import figures
from andrea_export.compare.language.suite import (
    CONTEXTS,
    Predictions,
    Suite,
    candidate_predictions,
    reference_predictions,
)
from andrea_export.compare.sources.onnx_source import onnx_source
from andrea_export.compare.sources.torch_source import TorchSource
from andrea_export.core.progress import Silent
from andrea_export.judge.budget import derived_budget, failures_of
from andrea_export.judge.verdicts import Terms
from andrea_export.sessions.base import Feeds
from andrea_export.sessions.torch_reference import TorchSession
from andrea_export.validation.comparison import diff
from andrea_export.weights.load import LoadedModel
from andrea_model.config import PRESETS


@pytest.fixture(scope="module")
def suite(trained: LoadedModel, held_out: tuple[int, ...]) -> Suite:
    return Suite(config=trained.config, text=held_out)


@pytest.fixture(scope="module")
def session(trained: LoadedModel) -> Iterator[TorchSession]:
    with TorchSession(trained.model, precision="fp64") as opened:
        yield opened


@pytest.fixture(scope="module")
def truth(session: TorchSession, suite: Suite) -> Predictions:
    return reference_predictions(session, suite, "fp64")


@pytest.fixture(scope="module")
def short(trained: LoadedModel, held_out: tuple[int, ...]) -> Suite:
    """Every kind of case, and no long one."""
    return Suite(config=trained.config, text=held_out[:129])


@pytest.fixture(scope="module")
def short_truth(session: TorchSession, short: Suite) -> Predictions:
    return reference_predictions(session, short, "fp64")


def softmax(logits: np.ndarray) -> np.ndarray:
    exponents = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(exponents / exponents.sum(axis=-1, keepdims=True))


def test_the_built_in_text_fills_every_context() -> None:
    assert len(BUILT_IN_TEXT.read_bytes()) > max(CONTEXTS)
    suite = Suite(config=PRESETS["andrea-120m"], text=built_in_tokens(PRESETS["andrea-120m"]))
    assert suite.contexts == (1, 2, 128, 1023, 1024) and len(suite.text) == 1025
    assert list(suite.cases) == [
        *(f"context {length}" for length in CONTEXTS), "left-padded batch", "decode with cache", "greedy",
    ]  # fmt: skip


def test_really_run_every_case_predicts_what_one_long_run_does(
    session: TorchSession, short: Suite, short_truth: Predictions
) -> None:
    """Contexts, padding and the stepwise cache are one function of the text: float64's rounding is all that is left."""
    found = candidate_predictions(session, short, "fp64")
    assert not found.problems and set(found.logits) == set(short_truth.logits) - {"greedy"}
    for case, logits in found.logits.items():
        np.testing.assert_allclose(logits, short_truth.logits[case], atol=1e-12, rtol=0, err_msg=case)
    assert found.greedy_tokens == short_truth.greedy_tokens and len(found.greedy_tokens) == short.num_greedy


def test_a_trained_model_predicts_text_it_has_not_seen(suite: Suite, truth: Predictions) -> None:
    """257 is chance. The longer the context, the surer: what an error does to predictions shows on such a model."""
    found = {case: figures(case, suite, truth, truth)[1] for case in ("context 128", "context 1024")}
    assert found["context 1024"]["perplexity_reference"] < 16 and found["context 128"]["perplexity_reference"] < 20
    assert all(metrics["top1_agreement"] == 1.0 for metrics in found.values())


def test_rounding_to_int8_shows_in_every_figure(trained: LoadedModel, suite: Suite, truth: Predictions) -> None:
    """Linear layers with 8-bit weights, one scale a matrix: a little more perplexity, a few other choices."""
    model = copy.deepcopy(trained.model)
    for name, parameter in model.named_parameters():
        if name.startswith("blocks.") and parameter.ndim == 2:
            scale = parameter.abs().max() / 127
            parameter.copy_((parameter / scale).round() * scale)
    with TorchSession(model, precision="fp64") as session:
        found = candidate_predictions(session, suite, "fp64")
    metrics = figures("context 1024", suite, truth, found)[1]
    assert 0.9 < metrics["top1_agreement"] < 1.0 and 0.9 < metrics["top5_overlap"] < 1.0
    assert 1e-6 < metrics["kl_mean"] < metrics["kl_p99"] < metrics["kl_max"] < 0.5
    assert 0 < metrics["perplexity_difference"] < 0.05
    failed = {failure.metric for failure in failures_of(metrics, derived_budget(metrics, 1e-4))}
    assert failed == {"max_abs", "top1_flip_margin", "top5_flip_margin", "kl_max", "perplexity_difference"}


def test_figures_are_numpys(suite: Suite, truth: Predictions) -> None:
    case = "context 128"
    generator = np.random.default_rng(0)
    moved = truth.logits[case] + 0.3 * generator.standard_normal(truth.logits[case].shape)
    num_positions, metrics = figures(case, suite, truth, Predictions(logits={case: moved}))
    p, q = softmax(truth.logits[case]), softmax(moved)
    divergence = (p * np.log(p / q)).sum(axis=1)
    assert num_positions == 128
    assert metrics["kl_mean"] == pytest.approx(divergence.mean()) and metrics["kl_max"] == pytest.approx(
        divergence.max()
    )
    assert metrics["kl_p99"] == pytest.approx(np.quantile(divergence, 0.99, method="higher"))
    top, chosen = p.argmax(axis=1), q.argmax(axis=1)
    assert metrics["top1_agreement"] == (top == chosen).mean() < 1.0
    best, found = np.argsort(p, axis=1)[:, -5:], np.argsort(q, axis=1)[:, -5:]
    overlap = np.mean([len(set(ours) & set(theirs)) / 5 for ours, theirs in zip(best, found, strict=True)])
    assert metrics["top5_overlap"] == pytest.approx(overlap)
    targets = np.array(suite.text[1:129])
    perplexity = np.exp(-np.log(q[np.arange(128), targets]).mean())
    assert metrics["perplexity_candidate"] == pytest.approx(perplexity)
    ours = np.exp(-np.log(p[np.arange(128), targets]).mean())
    assert metrics["perplexity_difference"] == pytest.approx(abs(perplexity - ours) / ours)


@given(st.floats(1e-6, 3.0), st.integers(0, 2**32 - 1), st.booleans())
def test_logits_within_delta_keep_every_derived_budget(delta: float, seed: int, extreme: bool) -> None:
    """The budgets are theorems: no error of at most delta breaks one, not even one that is delta everywhere."""
    config = PRESETS["andrea-tiny"]
    generator = np.random.default_rng(seed)
    suite = Suite(config=config, text=tuple(int(token) for token in generator.integers(0, config.vocab_size, 3)))
    expected = 5.0 * generator.standard_normal((2, config.vocab_size))
    noise = generator.uniform(-delta, delta, expected.shape)
    obtained = expected + (np.where(noise < 0, -delta, delta) if extreme else noise)
    _, metrics = figures(
        "context 2", suite, Predictions(logits={"context 2": expected}), Predictions(logits={"context 2": obtained})
    )
    rounded = delta + 2.0**-47  # adding delta to logits of up to 32 is itself rounded
    assert failures_of(metrics, derived_budget(metrics, rounded)) == ()


def test_a_confident_choice_that_flips_is_out_of_budget_and_a_tie_is_not(suite: Suite) -> None:
    delta = 0.01
    expected = np.zeros((2, 260))
    expected[0, 7], expected[1, 7] = 1.0, 0.015
    obtained = expected.copy()
    obtained[1, 8] = 0.02  # the lead was 0.015, under 2 delta
    tie = figures("context 2", suite, Predictions(logits={"context 2": expected}), Predictions(logits={"context 2": obtained}))[1]  # fmt: skip  # noqa: E501
    assert tie["top1_agreement"] == 0.5
    assert "top1_flip_margin" not in {entry.metric for entry in failures_of(tie, derived_budget(tie, delta))}
    obtained[0, 9] = 1.1
    flip = figures("context 2", suite, Predictions(logits={"context 2": expected}), Predictions(logits={"context 2": obtained}))[1]  # fmt: skip  # noqa: E501
    assert flip["top1_flip_margin"] == 1.0
    assert "top1_flip_margin" in {entry.metric for entry in failures_of(flip, derived_budget(flip, delta))}


class Wrong:
    """A session with a fault that only one kind of use shows."""

    def __init__(self, session: TorchSession, when: str) -> None:
        self.name, self.output_names = session.name, session.output_names
        self._session, self._when = session, when

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        outputs = self._session.run(feeds)
        num_tokens, total = feeds["input_ids"].shape[1], feeds["attention_mask"].shape[1]
        broken = {
            "one token": num_tokens == 1 and total == 1,
            "padding": bool((feeds["attention_mask"] == 0).any()),
            "cache": total > num_tokens,
        }[self._when]
        if not broken:
            return outputs
        wrong = outputs["logits"].copy()
        wrong[..., 5] += 100.0
        return {**outputs, "logits": wrong}


@pytest.mark.parametrize(
    ("when", "cases"),
    [
        ("one token", {"context 1"}),
        ("padding", {"left-padded batch"}),
        ("cache", {"decode with cache", "greedy"}),
    ],
)
def test_each_case_sees_the_fault_that_only_it_shows(
    session: TorchSession, short: Suite, short_truth: Predictions, when: str, cases: set[str]
) -> None:
    found = candidate_predictions(Wrong(session, when), short, "fp64")  # type: ignore[arg-type]
    failed = set()
    for case in short.cases:
        metrics = figures(case, short, short_truth, found)[1]
        if failures_of(metrics, derived_budget(metrics, 1e-9)):
            failed.add(case)
    assert failed == cases


def test_a_report_has_every_case_that_the_context_holds(
    trained: LoadedModel, trained_onnx: Path, held_out: tuple[int, ...]
) -> None:
    reference = TorchSource(trained.model, trained.origin, precision="fp64", provenance={})
    inputs = Inputs(cases=cases_from_tokens([held_out[:12]]), text=held_out)
    found = diff(reference, [onnx_source(trained_onnx)], inputs, Terms(), progress=Silent()).language_model
    assert [row.case for row in found] == [
        *(f"context {length}" for length in CONTEXTS), "left-padded batch", "decode with cache", "greedy",
    ]  # fmt: skip
    assert all(row.verdict == "pass" and row.basis["max_abs"] > 0 for row in found)
    assert all(row.metrics["top1_agreement"] == 1.0 for row in found[:-1])
    greedy = found[-1]
    assert greedy.metrics["greedy_prefix"] == greedy.metrics["greedy_length"] == 32
