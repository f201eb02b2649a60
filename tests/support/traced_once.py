"""torch traces a block of each shape of model once a run: a trace knows nothing of the weights, and takes seconds.

A test marked ``traces`` has every export of its own traced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from andrea_export.graph.canonical import export
from andrea_export.graph.canonical.trace import trace_one_block
from andrea_model.config import AndreaConfig
from support.made_once import MadeOnce


@pytest.fixture(scope="session", autouse=True)
def traced_once(made_once: MadeOnce) -> Iterator[None]:
    """Exports in this process take the trace that the first export of such a model made, in whichever worker."""

    def of(config: AndreaConfig) -> ir.Model:
        def make(folder: Path) -> Path:
            onnx.save(ir.to_proto(trace_one_block(config)), folder / "trace.onnx")
            return folder / "trace.onnx"

        shape = hashlib.sha256(repr(replace(config, n_layer=1)).encode()).hexdigest()[:16]
        return ir.from_proto(onnx.load(made_once(f"trace-{shape}", make)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "trace_one_block", of)
        yield


@pytest.fixture(autouse=True)
def traced_anew(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, traced_once: None) -> None:
    """What the mark ``traces`` asks for."""
    if request.node.get_closest_marker("traces") is not None:
        monkeypatch.setattr(export, "trace_one_block", trace_one_block)
