"""TF32: what it rounds to, and that it has budgets of its own, which hold for it and are not those of fp32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from andrea_export.compare.basis import MeasuredBasis
from andrea_export.compare.inputs import Inputs
from andrea_export.compare.runs import rounding_of
from andrea_export.compare.sources.torch_source import TorchSource
from andrea_export.core.progress import Silent
from andrea_export.judge.verdicts import Terms
from andrea_export.sessions.torch_reference import TorchSession, converted, in_tf32, rounded_to_tf32
from andrea_export.validation.comparison import diff
from andrea_export.weights.load import LoadedModel

STEP = 2.0**-10


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (1.0, 1.0),
        (-1.0 - STEP, -1.0 - STEP),
        (1.0 + 0.5 * STEP, 1.0),  # a tie goes to the even one
        (1.0 + 1.5 * STEP, 1.0 + 2 * STEP),
        (1.0 + 0.51 * STEP, 1.0 + STEP),
        (2.0 - 0.1 * STEP, 2.0),
        (0.0, 0.0),
        (np.inf, np.inf),
        (-np.inf, -np.inf),
    ],
)
def test_ten_bits_are_kept_and_ties_go_to_even(value: float, rounded: float) -> None:
    assert rounded_to_tf32(torch.tensor([value], dtype=torch.float32)).item() == np.float32(rounded)


def test_every_nan_stays_one() -> None:
    bits = torch.tensor([0x7FFFFFFF, -1, 0x7F800001], dtype=torch.int32)
    assert rounded_to_tf32(bits.view(torch.float32)).isnan().all()


def test_no_value_moves_by_more_than_half_a_step() -> None:
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    relative = ((rounded_to_tf32(x) - x) / x).abs()
    assert 0.4 * STEP < relative.max() <= 0.5 * STEP


def test_products_are_rounded_and_nothing_else_is(small: LoadedModel) -> None:
    model, plain = converted(small.model, "tf32"), small.model
    x = torch.randn(1, 4, small.config.d_model, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.equal(model.token_embed.weight, plain.token_embed.weight)
        assert torch.equal(model.ln_f(x), plain.ln_f(x))
        assert torch.equal(model.blocks[0].mlp.gelu(x), plain.blocks[0].mlp.gelu(x))
        for ours, theirs, given in (
            (model.blocks[0].mlp.fc, plain.blocks[0].mlp.fc, (x,)),
            (model.head, plain.head, (x, plain.token_embed.weight)),
        ):
            error = (ours(*given) - theirs(*given)).abs().max() / theirs(*given).abs().max()
            assert 1e-5 < error < 2e-3


def away_from_zero(x: torch.Tensor) -> torch.Tensor:
    """Ties away from zero, as a GPU's conversion instruction (cvt.rna.tf32) has it."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0x1000) & -0x2000).view(torch.float32)


def towards_zero(x: torch.Tensor) -> torch.Tensor:
    """What is left where the lower bits are simply ignored."""
    return (x.contiguous().view(torch.int32) & -0x2000).view(torch.float32)


class OtherTf32(TorchSource):
    """A candidate in TF32 that rounds in another way than the run its budgets are derived from."""

    def __init__(self, loaded: LoadedModel, rounding: object, *, precision: str) -> None:
        super().__init__(
            in_tf32(loaded.model, rounding),  # type: ignore[arg-type]
            loaded.origin,
            precision="fp32",
            provenance={},
        )
        from dataclasses import replace

        self.identity = replace(self.identity, name="played-engine", precision=precision)

    def layers(self, cases):  # type: ignore[no-untyped-def]
        from andrea_export.compare.torch_run import TorchRun

        return TorchRun(self._model, cases, precision="fp32")

    def session(self) -> TorchSession:
        return TorchSession(self._model, precision="fp32")


@pytest.mark.parametrize("rounding", [away_from_zero, towards_zero])
def test_tf32_keeps_its_own_budgets_and_not_those_of_fp32(
    reference: TorchSource, small: LoadedModel, inputs: Inputs, rounding: object
) -> None:
    as_itself = diff(reference, [OtherTf32(small, rounding, precision="tf32")], inputs, Terms(), progress=Silent())
    assert as_itself.verdict == "pass", as_itself.candidates[0].reason
    assert as_itself.candidates[0].precision == "tf32"
    as_fp32 = diff(reference, [OtherTf32(small, rounding, precision="fp32")], inputs, Terms(), progress=Silent())
    assert as_fp32.verdict == "fail" and as_fp32.first_failure == "blocks.0.attn.qkv"


def test_a_tf32_budget_still_sees_a_fault(reference: TorchSource, small: LoadedModel, inputs: Inputs) -> None:
    import copy
    from dataclasses import replace

    model = copy.deepcopy(small.model)
    model.blocks[1].mlp.fc.weight.mul_(1.02)
    source = OtherTf32(replace(small, model=model), away_from_zero, precision="tf32")
    report = diff(reference, [source], Inputs(cases=inputs.cases), Terms(), progress=Silent())
    assert report.first_failure == "blocks.1.mlp.fc"


def test_only_what_is_asked_for_is_run(small: LoadedModel, inputs: Inputs) -> None:
    basis = MeasuredBasis(small.model, inputs.cases, [rounding_of("fp32")], reference=None)
    assert set(basis._runs) == {"fp32"}
