"""What onnxruntime raises, and what its words mean."""

from __future__ import annotations


def onnxruntime_errors() -> tuple[type[Exception], ...]:
    """onnxruntime's exceptions; they share no base of their own, and a bound run raises RuntimeError itself."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    names = (
        "Fail", "InvalidArgument", "NoSuchFile", "NoModel", "EngineError", "RuntimeException", "InvalidProtobuf",
        "ModelLoaded", "NotImplemented", "InvalidGraph", "EPFail",
    )  # fmt: skip
    return (*(getattr(state, name) for name in names), RuntimeError, ValueError)


def is_out_of_memory(error: Exception) -> bool:
    """Whether onnxruntime failed for want of memory, which it says in words only."""
    message = str(error)
    return any(sign in message for sign in ("bad_alloc", "Failed to allocate memory", "out of memory", "PosixThread"))


def on_one_line(error: Exception) -> str:
    """What an exception says, on one line of at most 400 characters."""
    return " ".join(str(error).split())[:400]
