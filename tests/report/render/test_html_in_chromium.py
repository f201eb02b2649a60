"""The HTML in a real browser: it opens from disk, says what the report says, and answers clicks and keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from andrea_export.report.render import render
from andrea_export.report.schema import LayerRow, Report
from support.synthetic_report import FAULTY_CANDIDATE, LM_CASES

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page


@dataclass(slots=True, kw_only=True)
class Opened:
    """A page and everything it complained about or asked the network for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def show(self, file: Path) -> Page:
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("html[data-ready]")
        return self.page


@pytest.fixture
def opened(chromium: BrowserContext) -> Iterator[Opened]:
    page = chromium.new_page()
    yield Opened(page=page)
    page.close()


def row_named(report: Report, name: str, candidate: str = FAULTY_CANDIDATE) -> LayerRow:
    return next(row for row in report.layers if (row.name, row.candidate) == (name, candidate))


def shown_figures(page: Page) -> dict[str, list[str | None]]:
    """Metric → the whole values in the layer panel: local, its budget, accumulated, its budget."""
    rows: list[tuple[str, list[str | None]]] = page.eval_on_selector_all(
        "#layer-figures tbody tr",
        "rows => rows.map(row => [row.dataset.metric, [...row.querySelectorAll('td')]"
        ".map(cell => cell.getAttribute('data-value'))])",
    )
    return dict(rows)


def assert_shows(page: Page, row: LayerRow) -> None:
    assert page.locator("#layer-title").get_attribute("data-layer") == row.name
    assert row.local is not None
    figures = shown_figures(page)
    assert set(figures) == set(row.metrics)
    for metric, cells in figures.items():
        expected = (row.local.metrics, row.local.budget, row.metrics, row.budget)
        for cell, values in zip(cells, expected, strict=True):
            assert (None if cell is None else float(cell)) == values.get(metric), (row.name, metric)


def test_it_opens_from_disk_without_a_complaint_or_a_request(opened: Opened, failing_page: Path) -> None:
    page = opened.show(failing_page)
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []
    assert page.locator("#verdict").get_attribute("data-verdict") == "fail"
    assert "blocks.1.mlp.gelu is the first layer at fault" in page.locator("h1").inner_text()
    for chart in ("growth", "positions", "ulp", "channel", "agreement"):
        assert page.locator(f"#{chart}-chart :is(svg, canvas)").count() >= 1, chart


def test_its_numbers_are_the_reports(opened: Opened, failing_page: Path, failing: Report) -> None:
    page = opened.show(failing_page)
    for candidate in ("onnxruntime-cpu", FAULTY_CANDIDATE):
        page.select_option("#candidate", candidate)
        for name in failing.layer_order:
            page.select_option("#layer-select", name)
            assert_shows(page, row_named(failing, name, candidate))
        cells = page.eval_on_selector_all(
            "#layers-table tbody tr",
            "rows => rows.map(row => [row.dataset.row,"
            " ...[...row.querySelectorAll('[data-value]')].map(cell => cell.dataset.value)])",
        )
        assert [name for name, *_ in cells] == list(failing.layer_order)
        for name, *values in cells:
            row = row_named(failing, name, candidate)
            assert row.local is not None
            expected = [
                source[metric]
                for metric in ("max_abs", "relative_l2")
                for source in (row.local.metrics, row.local.budget, row.metrics, row.budget)
            ]
            assert [float(value) for value in values] == expected
    for lm in failing.language_model:
        line = page.locator(f'#language-model-table tr[data-candidate="{lm.candidate}"][data-case="{lm.case}"]')
        for metric, value in lm.metrics.items():
            assert float(str(line.locator(f'[data-metric="{metric}"]').get_attribute("data-value"))) == value


def test_the_layer_at_fault_is_shown_first(opened: Opened, failing_page: Path, failing: Report) -> None:
    page = opened.show(failing_page)
    assert page.input_value("#candidate") == FAULTY_CANDIDATE
    assert_shows(page, row_named(failing, "blocks.1.mlp.gelu"))
    assert "at fault" in page.locator("#layer-note").inner_text()


def test_a_click_on_a_point_shows_its_layer(opened: Opened, failing_page: Path, failing: Report) -> None:
    page = opened.show(failing_page)
    box = page.locator("#growth-chart").bounding_box()
    assert box is not None
    left, right = 58, 14  # the chart's own margins
    width = (box["width"] - left - right) / len(failing.layer_order)
    for index in (0, 5, 12, len(failing.layer_order) - 1):
        page.locator("#growth-chart").click(position={"x": left + width * (index + 0.5), "y": box["height"] / 2})
        assert_shows(page, row_named(failing, failing.layer_order[index]))


def test_a_click_on_the_heat_map_shows_its_layer(opened: Opened, failing_page: Path, failing: Report) -> None:
    page = opened.show(failing_page)
    box = page.locator("#positions-chart").bounding_box()
    assert box is not None
    top, bottom = 8, 82
    height = (box["height"] - top - bottom) / len(failing.layer_order)
    for index in (3, 17):
        page.locator("#positions-chart").click(position={"x": box["width"] / 2, "y": top + height * (index + 0.5)})
        assert_shows(page, row_named(failing, failing.layer_order[index]))


def test_the_histogram_names_every_bin_of_its_own_layer(opened: Opened, failing: Report, tmp_path: Path) -> None:
    from dataclasses import replace

    from andrea_export.report.schema import UlpHistogram

    short = replace(failing.layers[0], ulp_histogram=UlpHistogram(edges=(0,), counts=(7,)))
    file = tmp_path / "bins.html"
    file.write_text(render(replace(failing, layers=(short, *failing.layers[1:])), "html"), encoding="utf-8")
    page = opened.show(file)
    labels = page.locator("#ulp-chart svg text").all_text_contents()
    assert {"0", "1", "2", "4", "8", "16", "32", "64"} <= set(labels)


def test_a_failure_leads_to_its_layer_by_mouse_and_by_keyboard(
    opened: Opened, failing_page: Path, failing: Report
) -> None:
    page = opened.show(failing_page)
    page.locator("details summary").first.click()
    page.locator('#inherited button[data-layer="logits"]').first.click()
    assert_shows(page, row_named(failing, "logits"))
    page.locator('#layers-table button[data-layer="blocks.0.ln_2"]').focus()
    page.keyboard.press("Enter")
    assert_shows(page, row_named(failing, "blocks.0.ln_2"))
    page.locator("#next-layer").focus()
    page.keyboard.press("Space")
    after = failing.layer_order[failing.layer_order.index("blocks.0.ln_2") + 1]
    assert_shows(page, row_named(failing, after))
    assert page.locator('#layers-table tr[aria-current="true"]').get_attribute("data-row") == after


def test_everything_that_acts_is_reached_with_the_tab_key(opened: Opened, failing_page: Path) -> None:
    page = opened.show(failing_page)
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"skip", "candidate", "metric", "layer-select", "previous-layer", "next-layer"} <= reached


def test_only_failing_layers_can_be_listed(opened: Opened, failing_page: Path, failing: Report) -> None:
    page = opened.show(failing_page)
    page.check("#only-failing")
    failed = [row.name for row in failing.layers if row.candidate == FAULTY_CANDIDATE and row.verdict == "fail"]
    shown = page.eval_on_selector_all("#layers-table tbody tr", "rows => rows.map(row => row.dataset.row)")
    assert shown == failed and failed


@pytest.mark.parametrize("width", [320, 390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_every_screen_in_both_schemes(opened: Opened, failing_page: Path, width: int, scheme: str) -> None:
    opened.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    opened.page.set_viewport_size({"width": width, "height": 800})
    page = opened.show(failing_page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(","))
    assert brightness > 600 if scheme == "light" else brightness < 150


def test_a_phone_shows_a_layers_figures_whole(opened: Opened, failing_page: Path) -> None:
    opened.page.set_viewport_size({"width": 390, "height": 800})
    page = opened.show(failing_page)
    for table in ("#layer-figures", "#worst-table", "#candidates-table", ".findings"):
        too_wide = "element => element.scrollWidth - element.parentElement.clientWidth"
        assert page.locator(table).first.evaluate(too_wide) <= 0, table


def test_a_layer_whose_own_error_was_not_measured_is_not_said_to_inherit(
    opened: Opened, failing: Report, tmp_path: Path
) -> None:
    from dataclasses import replace

    file = tmp_path / "bare.html"
    bare = replace(failing, layers=tuple(replace(row, local=None) for row in failing.layers))
    file.write_text(render(bare, "html"), encoding="utf-8")
    page = opened.show(file)
    assert page.locator("#layer-note").inner_text().startswith("fail out of budget; its own error was not measured")


def test_it_prints_in_light_colours_on_several_pages(opened: Opened, failing_page: Path, tmp_path: Path) -> None:
    opened.page.emulate_media(color_scheme="dark")
    page = opened.show(failing_page)
    paper = page.pdf(format="A4", print_background=True)
    assert paper.startswith(b"%PDF") and paper.count(b"/Type /Page\n") + paper.count(b"/Type /Page ") >= 2
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#positions-chart svg rect, #positions-chart svg path").count() > 1000  # drawn, and sharp
    assert page.locator("#growth-chart").bounding_box()["width"] == 680  # type: ignore[index]
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("#positions-chart canvas").count() >= 1
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ink').trim()") == "#17202c"


def test_hostile_names_stay_text(opened: Opened, hostile: Report, tmp_path: Path) -> None:
    file = tmp_path / "hostile.html"
    file.write_text(render(hostile, "html"), encoding="utf-8")
    page = opened.show(file)
    box = page.locator("#growth-chart").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)  # the tooltip is HTML too
    page.wait_for_timeout(200)
    assert page.title().startswith("FAIL")
    assert page.locator("img").count() == 0
    assert opened.complaints == []
    assert page.locator("#layer-title").inner_text().startswith("<img src=x")


def test_a_report_without_measurements_still_opens(opened: Opened, passing: Report, tmp_path: Path) -> None:
    from dataclasses import replace

    nothing = replace(
        passing, candidates=passing.candidates[2:], layers=(), language_model=(), ratchet=(), checks=(), layer_order=()
    )
    file = tmp_path / "nothing.html"
    file.write_text(render(nothing, "html"), encoding="utf-8")
    page = opened.show(file)
    assert opened.complaints == []
    assert page.locator("h1").inner_text() == "Nothing could be measured: needs a GPU"


def test_every_language_model_case_is_listed(opened: Opened, failing_page: Path) -> None:
    page = opened.show(failing_page)
    cases = page.eval_on_selector_all(
        f'#language-model-table tr[data-candidate="{FAULTY_CANDIDATE}"]', "rows => rows.map(row => row.dataset.case)"
    )
    assert tuple(cases) == LM_CASES
