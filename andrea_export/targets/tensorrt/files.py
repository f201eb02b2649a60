"""The names of engines and of the plugin library inside a bundle. No toolchain."""

from __future__ import annotations

PLUGIN = "plugins/libandrea_plugins.so"
PATTERNS = (PLUGIN, "engines/*.plan")


def engine_file(target: str, precision: str, *, native_twin: bool) -> str:
    """The engine of one target and precision: ``engines/tensorrt-rtx-fp16.plan``."""
    return f"engines/{target}-{precision}{'-native' if native_twin else ''}.plan"
