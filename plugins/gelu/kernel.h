// The launcher of the GELU kernel.
#pragma once

#include <cstdint>

#include "common/cuda_api.h"
#include "common/storage.h"

namespace andrea::gelu {

// GELU of each element, in fp32, fp16 or bf16; called as an ElementwiseLauncher is (common/elementwise_launcher.h).
cudaError_t launch_gelu(StorageType type, void const* input, void* output, std::int64_t count,
                        DeviceLimits const& limits, cudaStream_t stream) noexcept;

}  // namespace andrea::gelu
