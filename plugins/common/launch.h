// One way to launch a kernel, under nvcc and under g++. Included by kernel files only.
#pragma once

#include <cstdint>

#include "common/cuda_api.h"

namespace andrea {

template <typename... Parameters>
cudaError_t launch(void (*kernel)(Parameters...), std::int32_t num_blocks, std::int32_t num_threads,
                   cudaStream_t stream, Parameters... arguments) noexcept
{
#if defined(__CUDACC__)
  kernel<<<static_cast<unsigned>(num_blocks), static_cast<unsigned>(num_threads), 0, stream>>>(arguments...);
  return cudaGetLastError();
#else
  (void)stream;
  return cpu_grid::walk(kernel, num_blocks, num_threads, arguments...);
#endif
}

}  // namespace andrea
