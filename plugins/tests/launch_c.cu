// The kernel's launcher alone, for callers in other languages: what timing variants of it needs.
#include "gelu/kernel.h"

extern "C" __attribute__((visibility("default"))) int andrea_launch_gelu(int type, void const* input, void* output,
                                                                         std::int64_t count, int num_multiprocessors,
                                                                         int max_threads_per_multiprocessor,
                                                                         void* stream)
{
  andrea::DeviceLimits const limits{num_multiprocessors, max_threads_per_multiprocessor};
  return andrea::gelu::launch_gelu(static_cast<andrea::StorageType>(type), input, output, count, limits,
                                   static_cast<cudaStream_t>(stream));
}
