// GELU over arrays on the CPU, from the plugin's own maths: what the exporter's validation and the tests load.
#include <cstdint>

#include "gelu/math.h"
#include "common/storage.h"

#define ANDREA_EXPORT extern "C" __attribute__((visibility("default")))

// One clone for processors with AVX2 and fma, one for the rest, chosen when the library is loaded; both give the same
// bits, the first some ten times faster. Sanitizers do not work before the loader has chosen.
#if defined(__x86_64__) && !defined(ANDREA_NO_CLONES)
#define ANDREA_CLONES __attribute__((target_clones("arch=haswell", "default")))
#else
#define ANDREA_CLONES
#endif

ANDREA_EXPORT void andrea_gelu_fp32(float const* input, float* output, std::int64_t count);
ANDREA_EXPORT void andrea_gelu_fp16(std::uint16_t const* input, std::uint16_t* output, std::int64_t count,
                                    double exp2_relative_error, double reciprocal_relative_error);
ANDREA_EXPORT void andrea_gelu_bf16(std::uint16_t const* input, std::uint16_t* output, std::int64_t count,
                                    double exp2_relative_error, double reciprocal_relative_error);

ANDREA_CLONES void andrea_gelu_fp32(float const* input, float* output, std::int64_t count)
{
  for (std::int64_t i = 0; i < count; ++i) {
    output[i] = andrea::gelu::gelu_fp32(input[i]);
  }
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
