"""What is installed on this machine: the version of each package, by its metadata, and whether CUDA can use an NVIDIA
GPU, by the driver's own answer. Imports no package."""

import functools
import subprocess
import sys

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


# How long the CUDA driver may take to say how many GPUs there are; a broken one can hang.
_PROBE_TIMEOUT_S = 20

# Run in a process of its own: a driver that is present but broken may hang or crash, and initialising CUDA in this
# process would make it unsafe to fork.
_PROBE = """
import ctypes
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError:
    print("libcuda.so.1 cannot be loaded")
else:
    status = cuda.cuInit(0)
    count = ctypes.c_int(0)
    status = status or cuda.cuDeviceGetCount(ctypes.byref(count))
    print(f"the driver reports CUDA error {status}" if status else "" if count.value else "the driver finds no GPU")
"""


def why_no_gpu() -> str:
    """Why CUDA cannot be used on this machine, or '' if it can."""
    try:
        probe = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"needs a GPU: the driver did not answer in {_PROBE_TIMEOUT_S} s"
    if probe.returncode != 0:
        return f"needs a GPU: asking the driver ended with exit code {probe.returncode}"
    reason = probe.stdout.strip()
    return f"needs a GPU: {reason}" if reason else ""
