"""onnxruntime behind the Session protocol. Importing this package does not import onnxruntime."""

from andrea_export.sessions.onnxruntime.errors import is_out_of_memory, onnxruntime_errors
from andrea_export.sessions.onnxruntime.opening import (
    CPU_TUNING,
    SessionTuning,
    bytes_for_tensorrt,
    check_assignment,
    open_raw,
)
from andrea_export.sessions.onnxruntime.providers import (
    PROVIDERS,
    Provider,
    onnxruntime_version,
    provider_availability,
    provider_row,
)
from andrea_export.sessions.onnxruntime.session import OnnxSession, input_dtype

__all__ = [
    "CPU_TUNING",
    "PROVIDERS",
    "OnnxSession",
    "Provider",
    "SessionTuning",
    "bytes_for_tensorrt",
    "check_assignment",
    "input_dtype",
    "is_out_of_memory",
    "onnxruntime_errors",
    "onnxruntime_version",
    "open_raw",
    "provider_availability",
    "provider_row",
]
