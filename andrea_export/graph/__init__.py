"""The canonical ONNX graph, and the passes that several targets share."""
