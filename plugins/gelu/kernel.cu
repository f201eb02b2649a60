// The GELU kernel: its maths in each storage type. nvcc compiles this file into the plugin, g++ for the tests.
#include "gelu/kernel.h"

#include "common/elementwise_kernel.cuh"
#include "gelu/math.h"

namespace andrea::gelu {
namespace {

#if defined(__CUDACC__)
using Approximations = DeviceApproximations;
#else
using Approximations = ModelledApproximations;
#endif

template <typename Storage>
struct Maths;

template <>
struct Maths<Fp32> {
  static ANDREA_HOST_DEVICE float apply(float x) { return gelu_fp32(x); }
};

template <>
struct Maths<Fp16> {
  static ANDREA_HOST_DEVICE float apply(float x) { return gelu_16bit<0>(x, Approximations{}); }
};

template <>
struct Maths<Bf16> {
  static ANDREA_HOST_DEVICE float apply(float x) { return gelu_16bit<12>(x, Approximations{}); }
};

}  // namespace

cudaError_t launch_gelu(StorageType type, void const* input, void* output, std::int64_t count,
                        DeviceLimits const& limits, cudaStream_t stream) noexcept
{
  return launch_elementwise<Maths, Fp32, Fp16, Bf16>(type, input, output, count, limits, stream);
}

}  // namespace andrea::gelu
