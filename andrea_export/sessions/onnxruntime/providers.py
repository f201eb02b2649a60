"""onnxruntime's providers, one row each, and whether one can be tried on this machine."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from andrea_export.core.errors import UsageError
from andrea_export.core.installed import installed_version
from andrea_export.sessions.base import Availability


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One way to run an ONNX file: onnxruntime's name for it, and the package that brings it."""

    name: str
    ort_name: str
    install: str
    plugin_package: str | None = None
    """A provider that comes as a library of its own, to be registered at run time."""
    takes_plugins: bool = False
    """It runs each GELU by the TensorRT plugin; the others by the function body that is in the file."""


PROVIDERS: dict[str, Provider] = {
    row.name: row
    for row in (
        Provider(name="cpu", ort_name="CPUExecutionProvider", install="pip install 'andrea-export[cpu]'"),
        Provider(
            name="cuda",
            ort_name="CUDAExecutionProvider",
            install="pip uninstall -y onnxruntime; pip install 'andrea-export[gpu]'",
        ),
        Provider(
            name="tensorrt",
            ort_name="TensorrtExecutionProvider",
            install="pip uninstall -y onnxruntime; pip install 'andrea-export[gpu,tensorrt]'",
            takes_plugins=True,
        ),
        Provider(
            name="tensorrt-rtx",
            ort_name="NvTensorRTRTXExecutionProvider",
            install="pip install 'andrea-export[cpu]' onnxruntime-ep-nv-tensorrt-rtx-cu13",
            plugin_package="onnxruntime_ep_nv_tensorrt_rtx",
        ),
    )
}


def provider_row(name: str) -> Provider:
    """The row of a provider. Raises UsageError naming the providers there are."""
    try:
        return PROVIDERS[name]
    except KeyError:
        raise UsageError(f"unknown provider '{name}'", hint=f"providers: {', '.join(PROVIDERS)}") from None


def provider_availability(name: str) -> Availability:
    """Whether a session on this provider can be tried here; only opening one proves that its driver works."""
    row = provider_row(name)
    if importlib.util.find_spec("onnxruntime") is None:
        return Availability(available=False, reason="onnxruntime is not installed", hint=row.install)
    import onnxruntime

    versions, reason = {"onnxruntime": onnxruntime.__version__}, ""
    if row.plugin_package is not None:
        if importlib.util.find_spec(row.plugin_package) is None:
            reason = f"{row.plugin_package} is not installed"
    elif row.ort_name not in (offered := onnxruntime.get_available_providers()):
        reason = f"this onnxruntime {versions['onnxruntime']} has no {row.ort_name} (it has {', '.join(offered)})"
    return Availability(available=not reason, reason=reason, hint=row.install if reason else None, versions=versions)


def onnxruntime_version() -> str:
    """The installed version, whichever of the packages brought it; empty if none did. Does not import it."""
    return installed_version("onnxruntime", "onnxruntime-gpu") or ""
