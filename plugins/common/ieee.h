// The fp32 operations the plugins' maths is written in, each rounded once, to nearest, on host and device alike.
//
// nvcc contracts a * b + c into one fma where it can, g++ does so on some targets. Maths that counts its rounding
// errors spells every operation through these functions, so that the host computes the device's bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/host_device.h"

namespace andrea::ieee {

ANDREA_HOST_DEVICE std::uint32_t bits_from_float(float value)
{
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

ANDREA_HOST_DEVICE float float_from_bits(std::uint32_t bits)
{
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float value = 0.0F;
  std::memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

ANDREA_HOST_DEVICE float mul(float a, float b)
{
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

ANDREA_HOST_DEVICE float add(float a, float b)
{
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

// a * b + c with one rounding.
ANDREA_HOST_DEVICE float fma(float a, float b, float c)
{
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

// 1 / a for a in [1, 2], correctly rounded.
//
// On the device: the hardware's approximation and one Newton step, which is what the compiler's own correctly rounded
// reciprocal does for arguments that are neither subnormal nor huge; its range check is left out, since a is in [1, 2].
ANDREA_HOST_DEVICE float reciprocal_1_2(float a)
{
#if defined(__CUDA_ARCH__)
  float approximate = 0.0F;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(approximate) : "f"(a));
  float const residual = __fmaf_rn(-a, approximate, 1.0F);
  return __fmaf_rn(approximate, residual, approximate);
#else
  return 1.0F / a;
#endif
}

ANDREA_HOST_DEVICE float magnitude(float a)
{
#if defined(__CUDA_ARCH__)
  return fabsf(a);
#else
  return __builtin_fabsf(a);
#endif
}

// The smaller of a and b; b when a is NaN.
ANDREA_HOST_DEVICE float min_number(float a, float b)
{
#if defined(__CUDA_ARCH__)
  return fminf(a, b);
#else
  return a < b ? a : b;
#endif
}

}  // namespace andrea::ieee
