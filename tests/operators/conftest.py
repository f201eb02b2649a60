"""A copy of the plugin's sources that a test may change."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import andrea_export.operators.build as build_module
import andrea_export.operators.sources as sources_module
from andrea_export.operators.sources import plugin_source_dir


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the plugin's sources, to be changed, that the package takes for its own."""
    copy = Path(shutil.copytree(plugin_source_dir(), tmp_path / "sources"))
    for module in (build_module, sources_module):
        monkeypatch.setattr(module, "plugin_source_dir", lambda: copy)
    return copy
