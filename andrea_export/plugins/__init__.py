"""The plugin library from Python: built once per content, checked before use, and its maths on the host.

Owns finding the compilers, the cache of builds and the preflight of foreign libraries. The C++ is in
``plugins/`` of the checkout (``andrea_export/_plugin_sources`` of a wheel) and is never written to; TensorRT
is never imported here.
"""

from __future__ import annotations

from andrea_export.plugins.build import (
    PluginBuild,
    build_host_library,
    build_plugin_library,
)
from andrea_export.plugins.creators import Creator, check_library, read_creators
from andrea_export.plugins.host_gelu import HostGelu
from andrea_export.plugins.sources import default_architectures, plugin_sources_sha256
from andrea_export.plugins.toolchain import ToolStatus, compiler_status

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
