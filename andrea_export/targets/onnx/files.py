"""The canonical file's names inside a bundle. No toolchain."""

MODEL = "model.onnx"
WEIGHTS = "model.onnx.data"
