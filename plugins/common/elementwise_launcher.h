// What a runtime's adapter calls of an elementwise operator. Knows CUDA, knows no runtime.
#pragma once

#include <cstdint>

#include "common/cuda_api.h"
#include "common/storage.h"

namespace andrea {

// Enqueues the operator on `count` elements of `type` on `stream`, in one launch; nothing at all for count 0. The arrays
// may be at any address their element type allows, and may be the same array; they must not overlap otherwise.
//
// Returns the launch's error. Allocates nothing and asks the device nothing: `limits` says what there is to know.
using ElementwiseLauncher = cudaError_t (*)(StorageType type, void const* input, void* output, std::int64_t count,
                                            DeviceLimits const& limits, cudaStream_t stream) noexcept;

}  // namespace andrea
