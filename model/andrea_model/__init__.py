"""ANDREA's reference model in PyTorch. It never imports the toolchain.

``PRESETS`` and ``AndreaConfig`` need no torch; everything else imports it on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from andrea_model.config import PRESETS, AndreaConfig

if TYPE_CHECKING:
    from andrea_model.model import Andrea, build_model, parameter_shapes, position_ids_from_mask

__all__ = ["PRESETS", "Andrea", "AndreaConfig", "build_model", "parameter_shapes", "position_ids_from_mask"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from andrea_model import model

        return getattr(model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
