"""Graph rewrites over the canonical ONNX, a file for a pass or for a family of them, each a pass with a contract."""
