// The status codes plugins return to TensorRT: 0 is success, anything else stops the caller with an error.
#pragma once

#include <cstdint>

namespace andrea {

using Status = std::int32_t;

inline constexpr Status kSuccess = 0;
// Negative, so that they never meet a cudaError_t, which enqueue passes through as it is.
inline constexpr Status kUnsupported = -1;  // a type, format, rank or count this operator does not take
inline constexpr Status kNotReady = -2;     // called before the calls it depends on

}  // namespace andrea
