"""The graphs for onnxruntime's CPU provider: fp32, int8 and int4 over one shared cache."""
