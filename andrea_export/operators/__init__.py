"""The plugin library from Python: built once per content, checked before use, and its maths on the host.

Owns finding the compilers, the cache of builds and the preflight of foreign libraries. The C++ is in
``plugins/`` of the checkout (``andrea_export/_plugin_sources`` of a wheel) and is never written to; TensorRT
is never imported here.

Names are imported when they are used: ``doctor`` finds compilers where numpy is not installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from andrea_export.operators.build import PluginBuild, build_host_library, build_plugin_library
    from andrea_export.operators.creators import Creator, check_library, read_creators
    from andrea_export.operators.host_gelu import HostGelu
    from andrea_export.operators.sources import default_architectures, plugin_sources_sha256
    from andrea_export.operators.toolchain import ToolStatus, compiler_status

_HOMES = {
    "Creator": "creators",
    "HostGelu": "host_gelu",
    "PluginBuild": "build",
    "ToolStatus": "toolchain",
    "build_host_library": "build",
    "build_plugin_library": "build",
    "check_library": "creators",
    "compiler_status": "toolchain",
    "default_architectures": "sources",
    "plugin_sources_sha256": "sources",
    "read_creators": "creators",
}

__all__ = [
    "Creator",
    "HostGelu",
    "PluginBuild",
    "ToolStatus",
    "build_host_library",
    "build_plugin_library",
    "check_library",
    "compiler_status",
    "default_architectures",
    "plugin_sources_sha256",
    "read_creators",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
