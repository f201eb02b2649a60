"""Whether this machine has an NVIDIA GPU that CUDA can use: the one answer, from the driver itself.

Needs the standard library alone.
"""

from __future__ import annotations

import subprocess
import sys

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
