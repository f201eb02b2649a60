"""The operator's row, in Python and in the library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from andrea_export.core.errors import PluginError
from andrea_export.operators.creators import check_library, read_creators
from andrea_export.operators.sources import andrea_gelu
from support.plugin_builds import PLUGIN_ON_CPU, build_programs


def test_the_library_answers_to_the_row(cpp_programs: Path) -> None:
    op = andrea_gelu()
    creator = check_library(cpp_programs / PLUGIN_ON_CPU, op)
    assert (creator.name, creator.version, creator.namespace) == (
        op.op_type,
        op.plugin_version,
        op.plugin_namespace,
    )


def test_another_row_makes_another_library(sources: Path, tmp_path: Path) -> None:
    row = sources / "gelu" / "op.json"
    changed = {"op_type": "OtherGelu", "plugin_version": "7", "plugin_namespace": "org.other"}
    row.write_text(json.dumps({**json.loads(row.read_text()), **changed}))
    library = build_programs(sources, tmp_path / "build", "andrea_plugins_cpu") / PLUGIN_ON_CPU
    (creator,) = read_creators(library)
    assert (creator.name, creator.version, creator.namespace) == ("OtherGelu", "7", "org.other")
    with pytest.raises(PluginError, match=r"asks for AndreaGelu version 1 .* offers OtherGelu version 7"):
        check_library(library, andrea_gelu())
