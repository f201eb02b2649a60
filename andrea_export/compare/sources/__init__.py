"""What REFERENCE and CANDIDATE can be: one file a kind, behind one protocol.

    base ──> torch_source, onnx_source, engine_source, trace_source ──> opening

``base`` what a source is and when two can be compared · ``opening`` recognises one by its content.
"""
