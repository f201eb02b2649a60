"""What one file or folder is: a checkpoint, an ONNX file, an engine or a bundle, recognised by content, not by name.

Reads headers and graphs, never a whole set of weights into memory; needs no GPU and no torch. Returns facts; the cli
renders them. A fact that cannot be told is None, and is shown as unknown.
"""
