"""Graph rewrites over the canonical ONNX, a file for a pass or a family of them, each an ``onnx_ir`` pass with a contract."""
