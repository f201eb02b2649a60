"""Imported first by every script: this checkout's packages come before installed ones, and ``support`` is found.

What a script starts finds the same, by ``PYTHONPATH``.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = [str(ROOT / folder) for folder in (".", "model", "tests")]

sys.path[1:1] = _PACKAGES
os.environ["PYTHONPATH"] = os.pathsep.join([*_PACKAGES, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
