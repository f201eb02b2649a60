"""What runs one model, behind one protocol: torch and onnxruntime."""
