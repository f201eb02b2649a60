"""The diff engine: two models, layer by layer and as language models, on the same inputs.

    sources ──> runs (torch, ONNX, engine, recorded trace) ──> compare (segment by segment) ──> policy ──> report

``cases`` what is run · ``sources`` what REFERENCE and CANDIDATE can be, a file a kind · ``runs`` the protocol and its
four kinds · ``compare`` the streaming comparison · ``language_model`` what the errors do to predictions · ``policy``
what is allowed · ``judging`` rows and verdicts · ``ratchet`` against an earlier report · ``trace_file`` recorded runs.
"""
