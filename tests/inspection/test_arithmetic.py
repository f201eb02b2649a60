"""The lesson's parameter arithmetic: its figures, and the three public ones, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from andrea_export.inspection.facts import arithmetic_lines, largest_count, parameter_counts
from andrea_model import PRESETS


def test_the_lessons_figures_for_120m() -> None:
    counts = parameter_counts(PRESETS["andrea-120m"])
    assert counts.w_1 == counts.w_2 == 768 * 3072 == 2_359_296
    assert counts.mlp_matrices == 4_718_592
    assert counts.all_mlp_matrices == 56_623_104
    assert counts.trunk == 84_934_656
    assert counts.token_embedding == 8449 * 768 == 6_488_832
    assert counts.position_embedding == 1024 * 768
    assert counts.exact == 92_331_264
    assert counts.untied_matrices == 98_698_752  # the public model card's 98.7M: ``russellbal/ANDREA``


def test_the_public_cards_count_is_that_of_its_variant() -> None:
    published = replace(PRESETS["andrea-120m"], tied_head=False, bias=False, norm_parameters=False)
    assert parameter_counts(published).exact == parameter_counts(published).untied_matrices == 98_698_752
    assert largest_count(published) == largest_count(PRESETS["andrea-120m"])
    text = "\n".join(arithmetic_lines(published))
    assert "exact, with head of its own, no biases, norms without parameters: 98,698,752" in text
    assert "one matrix for input and output" not in text


@pytest.mark.parametrize("preset", PRESETS)
def test_the_groups_add_up(preset: str) -> None:
    counts = parameter_counts(PRESETS[preset])
    assert counts.exact == (
        counts.trunk + counts.biases + counts.layer_norms + counts.token_embedding + counts.position_embedding
    )
    assert largest_count(PRESETS[preset]) - counts.exact == counts.token_embedding


def test_no_public_figure_is_hidden() -> None:
    text = "\n".join(arithmetic_lines(PRESETS["andrea-120m"]))
    for figure in ("92,331,264", "98,698,752", "98.7M", "120M", "2.36M", "4.72M", "56.6M", "85M", "6.49M", "13M"):
        assert figure in text, figure


def test_other_presets_are_not_measured_against_the_120m_figures() -> None:
    text = "\n".join(arithmetic_lines(PRESETS["andrea-12m"]))
    assert "11,925,888" in text
    assert "card" not in text
    assert "120M" not in text
