"""The proof of what each GELU became, on networks that no parser gives."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from andrea_export.core.errors import BuildError
from andrea_export.targets.tensorrt.worker_build import gelu_facts


def test_a_native_gelu_without_a_layer_of_its_own_is_no_proof() -> None:
    """No plugin layer is not enough: a GELU that vanished is not TensorRT's own GELU."""
    network = SimpleNamespace(num_layers=0)
    with pytest.raises(BuildError, match=r"blocks\.0\.mlp\.gelu: no layer of its own"):
        gelu_facts(None, network, ["blocks.0.mlp.gelu"], None)
