"""The runtime: a bundle, opened once, that generates. ``load`` is its door; importing it does not import a backend."""

from __future__ import annotations

from andrea_export.runtime.loading import load
from andrea_export.runtime.model import Model
from andrea_export.runtime.sampling import Sampling

__all__ = ["Model", "Sampling", "load"]
