// The CUDA runtime's names: CUDA's own header, or, under ANDREA_CPU_GRID, a stand-in that runs grids on the CPU.
#pragma once

#include <cstdint>

#if defined(ANDREA_CPU_GRID)
#include "common/cpu_grid.h"
#else
#include <cuda_runtime_api.h>
#endif

namespace andrea {

// What a launch may assume about the device it goes to. Queried once per execution context, never per call.
struct DeviceLimits {
  std::int32_t num_multiprocessors = 0;
  std::int32_t max_threads_per_multiprocessor = 0;
};

}  // namespace andrea
