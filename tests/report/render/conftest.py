"""What the renderers' tests share: reports of every kind, and a headless Chromium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from andrea_export.report.render import render
from andrea_export.report.schema import Report
from support.synthetic_report import synthetic_report

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

HOSTILE = '<img src=x onerror="document.title=`owned`">|`</script><b>'


@pytest.fixture(scope="session")
def failing() -> Report:
    """A report whose second candidate fails from one layer on."""
    return synthetic_report()


@pytest.fixture(scope="session")
def passing() -> Report:
    """The same without a fault."""
    return synthetic_report(faulty_layer=None)


@pytest.fixture(scope="session")
def hostile(failing: Report) -> Report:
    """A report whose names are an attack on every format."""
    rows = tuple(replace(row, name=HOSTILE + row.name) for row in failing.layers)
    candidates = tuple(replace(candidate, reason=HOSTILE) for candidate in failing.candidates)
    order = tuple(HOSTILE + name for name in failing.layer_order)
    return replace(failing, layers=rows, candidates=candidates, layer_order=order)


@pytest.fixture(scope="session")
def failing_page(failing: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The failing report as an HTML file."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(failing, "html"), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserContext]:
    """Debian's Chromium, headless, with an empty profile and no network of its own."""
    from playwright.sync_api import sync_playwright

    executable = shutil.which("chromium")
    if executable is None:
        missing = "no chromium on this machine: apt-get install chromium"
        # Where CI runs it is there, so that a test which never ran is not taken for one that passed.
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    switches = (
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    )
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"),
            executable_path=executable,
            headless=True,
            args=list(switches),
            viewport={"width": 1280, "height": 900},
        )
        yield context
        context.close()
