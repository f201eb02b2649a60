"""How passes are run: in order, and a broken contract is told with its pass and those that ran before it."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from andrea_export.core.errors import PassError
from andrea_export.graph.passes.extract_layers import AddTaps
from andrea_export.graph.passes.gelu_nodes import NativeGelu, PluginGelu
from andrea_export.graph.passes.graph_edits import run_passes
from andrea_export.operators.sources import andrea_gelu
from support.graphs import two_gelus

OP = andrea_gelu()


def test_an_error_names_the_pass_and_those_that_ran_before_it() -> None:
    with pytest.raises(PassError) as caught:
        run_passes(two_gelus(), AddTaps(["blocks.0.mlp.gelu"]), NativeGelu(OP), PluginGelu(OP))
    assert str(caught.value) == "PluginGelu (after AddTaps, NativeGelu): the graph has no com.andrea::AndreaGelu node"
    assert caught.value.hint == "start from the model.onnx that andrea-export wrote"


def test_the_first_pass_has_none_before_it() -> None:
    with pytest.raises(PassError) as caught:
        run_passes(two_gelus(), AddTaps(["absent"]), NativeGelu(OP))
    assert str(caught.value) == "AddTaps: the graph has no value for 1 of 1 layers: absent"


@pytest.mark.parametrize("method", ["requires", "call", "ensures"])
def test_a_bug_in_a_pass_is_not_told_as_a_broken_contract(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(_pass: object, _model: ir.Model) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(NativeGelu, method, bug)
    with pytest.raises((KeyError, ir.passes.InvariantError)) as caught:
        run_passes(two_gelus(), NativeGelu(OP))
    assert isinstance(caught.value.__cause__ or caught.value, KeyError)
