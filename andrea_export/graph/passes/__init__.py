"""Graph rewrites over the canonical ONNX: one file a pass, each an ``onnx_ir`` pass that states its contract."""
