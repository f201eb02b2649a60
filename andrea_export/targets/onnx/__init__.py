"""The canonical ONNX file, which every other target is derived from."""
