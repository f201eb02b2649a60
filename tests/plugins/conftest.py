"""Where the plugin's tests find what they share: modules beside them, and fixtures in support/plugin_builds.py."""

from __future__ import annotations

import sys
from pathlib import Path

# Tests are imported by path, so the modules they share are not found by themselves.
sys.path.insert(0, str(Path(__file__).resolve().parent))
