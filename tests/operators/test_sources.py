"""The plugin's sources: what their hash sees, and the architectures they name."""

from __future__ import annotations

from pathlib import Path

from andrea_export.operators.sources import default_architectures, plugin_sources_sha256


def test_the_hash_sees_sources_and_nothing_else(sources: Path) -> None:
    before = plugin_sources_sha256()
    (sources / "README.md").write_text("other prose")
    (sources / "build").mkdir()
    (sources / "build" / "CMakeCache.txt").write_text("left by a build")
    assert plugin_sources_sha256() == before
    for changed in ("gelu/kernel.cu", "gelu/op.json", "CMakeLists.txt", "cmake/exports.map", "architectures.json"):
        with (sources / changed).open("a") as file:
            file.write("\n")
        after = plugin_sources_sha256()
        assert after != before, changed
        before = after


def test_the_hash_sees_names(sources: Path) -> None:
    before = plugin_sources_sha256()
    (sources / "gelu" / "math.h").rename(sources / "gelu" / "maths.h")
    assert plugin_sources_sha256() != before


def test_the_default_architectures_serve_every_gpu_from_ampere_on() -> None:
    assert default_architectures() == ("80-real", "89-real", "90", "120-real")
