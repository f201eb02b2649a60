"""What can be built, and in which precisions: the names that a recipe, a manifest and a session share.

Names alone, so that whoever runs a bundle has them without the recipe, which pydantic validates.
"""

from __future__ import annotations

from typing import Literal

Target = Literal["onnx", "ort-cpu", "tensorrt", "tensorrt-rtx"]
EngineTarget = Literal["tensorrt", "tensorrt-rtx"]
Int8Decode = Literal["blockwise", "dynamic"]

TARGETS: tuple[Target, ...] = ("onnx", "ort-cpu", "tensorrt", "tensorrt-rtx")
ENGINE_TARGETS: tuple[EngineTarget, ...] = ("tensorrt", "tensorrt-rtx")
