"""Which version of a package is installed here: one look-up for all, in the metadata. Imports no package."""

from __future__ import annotations

import functools

import andrea_export

# Every package that has a say in what is exported, built or measured.
PACKAGES = (
    "torch",
    "onnx",
    "onnx-ir",
    "onnxscript",
    "numpy",
    "ml-dtypes",
    "safetensors",
    "polygraphy",
    "onnxruntime",
    "onnxruntime-gpu",
    "tensorrt",
    "tensorrt-cu12",
    "tensorrt-cu13",
    "tensorrt-rtx",
    "tensorrt-rtx-cu12",
    "tensorrt-rtx-cu13",
    "tensorrt-rtx-cu13-bindings",
    "tensorrt-rtx-cu13-libs",
)


def installed_version(*distributions: str) -> str | None:
    """The version of the first of these distributions that is installed; None where none of them is."""
    import importlib.metadata  # 2 MB that a running model can do without

    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


@functools.cache
def installed_versions() -> dict[str, str]:
    """Package → version, for those of PACKAGES that are installed, and this tool's own."""
    found = {package: installed_version(package) for package in PACKAGES}
    here = {package: version for package, version in found.items() if version is not None}
    return {"andrea-export": andrea_export.__version__, **here}
