// GELU over arrays on the CPU, from the plugin's own maths: what the exporter's validation and the tests load.
#include <cstdint>

#include "gelu/math.h"
#include "common/storage.h"

#define ANDREA_EXPORT extern "C" __attribute__((visibility("default")))

ANDREA_EXPORT void andrea_gelu_fp32(float const* input, float* output, std::int64_t count);
ANDREA_EXPORT void andrea_gelu_fp16(std::uint16_t const* input, std::uint16_t* output, std::int64_t count,
                                    double exp2_relative_error, double reciprocal_relative_error);
ANDREA_EXPORT void andrea_gelu_bf16(std::uint16_t const* input, std::uint16_t* output, std::int64_t count,
                                    double exp2_relative_error, double reciprocal_relative_error);

namespace {

inline __attribute__((always_inline)) void gelu_fp32_array(float const* input, float* output, std::int64_t count)
{
  for (std::int64_t i = 0; i < count; ++i) {
    output[i] = andrea::gelu::gelu_fp32(input[i]);
  }
}

#if defined(__x86_64__)
// The same bits, some ten times faster: without its own instruction every fma is a call into the C library.
__attribute__((target("avx2,fma"))) void gelu_fp32_array_fma(float const* input, float* output, std::int64_t count)
{
  gelu_fp32_array(input, output, count);
}
#endif

}  // namespace

void andrea_gelu_fp32(float const* input, float* output, std::int64_t count)
{
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    gelu_fp32_array_fma(input, output, count);
    return;
  }
#endif
  gelu_fp32_array(input, output, count);
}

void andrea_gelu_fp16(std::uint16_t const* input, std::uint16_t* output, std::int64_t count,
                      double exp2_relative_error, double reciprocal_relative_error)
{
  andrea::gelu::ModelledApproximations const model{exp2_relative_error, reciprocal_relative_error};
  for (std::int64_t i = 0; i < count; ++i) {
    output[i] = andrea::fp16_from_float(andrea::gelu::gelu_16bit<0>(andrea::float_from_fp16(input[i]), model));
  }
}

void andrea_gelu_bf16(std::uint16_t const* input, std::uint16_t* output, std::int64_t count,
                      double exp2_relative_error, double reciprocal_relative_error)
{
  andrea::gelu::ModelledApproximations const model{exp2_relative_error, reciprocal_relative_error};
  for (std::int64_t i = 0; i < count; ++i) {
    output[i] = andrea::bf16_from_float(andrea::gelu::gelu_16bit<12>(andrea::float_from_bf16(input[i]), model));
  }
}
