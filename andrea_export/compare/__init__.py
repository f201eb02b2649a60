"""The comparison: two models, layer by layer and as language models, on the same inputs. Judges nothing.

    sources ──> runs (torch, ONNX, engine, recorded run) ──> compare (segment by segment) ──> rows of a report

``inputs`` what is run · ``sources`` what can be compared and what each can do · ``runs`` the protocol of a run ·
``basis`` what budgets are multiples of · ``compare`` the loop · ``followed`` a candidate through it · ``rows`` figures
· ``language`` what errors do to predictions · ``recording``, ``trace_file`` runs that are kept.
"""
